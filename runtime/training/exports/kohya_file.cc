#include "runtime/training/exports/kohya_file.h"

#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "base/macros/status_macros.h"

namespace tessera::runtime {
namespace {

// Names of a family in the header: the network's module, the base's version, its architecture.
struct FamilyNames {
  const char* network;
  const char* version;
  const char* architecture;
};

// Source: sd-scripts, library/sai_model_spec.py and flux_train_network.py, sd3_train_network.py; musubi-tuner for the
// newer families.
FamilyNames NamesOf(const models::AdapterNames& names) {
  switch (names.model().originals) {
    case models::OriginalNames::kSd3:
      return {.network = "networks.lora_sd3", .version = "sd3m", .architecture = "stable-diffusion-3/lora"};
    case models::OriginalNames::kZImage:
      return {.network = "networks.lora_zimage", .version = "zimage", .architecture = "z-image/lora"};
    case models::OriginalNames::kFlux2:
      return {.network = "networks.lora_flux_2", .version = "flux2", .architecture = "flux-2/lora"};
    case models::OriginalNames::kQwenImage:
      return {.network = "networks.lora_qwen_image", .version = "qwen_image", .architecture = "qwen-image/lora"};
    case models::OriginalNames::kFlux:
    case models::OriginalNames::kNone:
      break;
  }
  const bool is_guided = names.Module("transformer", "time_text_embed.guidance_embedder.linear_1") != nullptr;
  return {.network = "networks.lora_flux",
          .version = "flux1",
          .architecture = is_guided ? "flux-1-dev/lora" : "flux-1-schnell/lora"};
}

double ScaleOf(const AdapterModule& module) { return module.alpha / static_cast<double>(module.a.size(0)); }

// One module of the authors.
struct Fused {
  at::Tensor down, up;
  double alpha = 0;
};

// Fuses the trained modules of `parts` (null: not trained) into one. Its scale is that of its parts; if these differ,
// its scale is 1 and their scales are multiplied into `up`.
Fused Fuse(const models::NamedModules& named, const std::vector<const AdapterModule*>& parts) {
  const AdapterModule* first = nullptr;
  bool is_one_scale = true;
  int64_t rank = 0, out = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    out += named.modules[i]->out;
    if (parts[i] == nullptr) continue;
    if (first == nullptr) first = parts[i];
    is_one_scale = is_one_scale && ScaleOf(*parts[i]) == ScaleOf(*first);
    rank += parts[i]->a.size(0);
  }
  std::vector<at::Tensor> downs;
  Fused fused{.up = at::zeros({out, rank}, first->b.options())};
  int64_t row = 0, column = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] != nullptr) {
      const at::Tensor &a = parts[i]->a, &b = parts[i]->b;
      downs.push_back(a);
      fused.up.narrow(0, row, b.size(0)).narrow(1, column, b.size(1)).copy_(is_one_scale ? b : b * ScaleOf(*parts[i]));
      column += b.size(1);
    }
    row += named.modules[i]->out;
  }
  fused.down = at::cat(downs);
  if (named.halves_exchanged) fused.up = fused.up.roll(out / 2, 0);
  fused.alpha = (is_one_scale ? ScaleOf(*first) : 1.0) * static_cast<double>(rank);
  return fused;
}

// Returns the adapter's modules by name. Their shapes must be those of the model.
absl::StatusOr<std::map<std::string, const AdapterModule*, std::less<>>> ByName(const AdapterExport& adapter,
                                                                                const models::AdapterNames& names) {
  std::map<std::string, const AdapterModule*, std::less<>> modules;
  for (const AdapterModule& module : adapter.modules) {
    const models::ProductSpec* product = names.Module("transformer", module.name);
    if (product == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("adapter module ", base::Quote(module.name), " is not a module of the model"));
    }
    if (module.a.size(1) != product->in || module.b.size(0) != product->out) {
      return absl::InvalidArgumentError(absl::StrCat("adapter module ", base::Quote(module.name), ": the factors [",
                                                     module.a.size(0), ", ", module.a.size(1), "] and [",
                                                     module.b.size(0), ", ", module.b.size(1),
                                                     "] do not fit a weight [", product->out, ", ", product->in, "]"));
    }
    modules[product->name] = &module;
  }
  return modules;
}

// Returns the adapter's modules under the authors' names, by their underscored form.
absl::StatusOr<std::map<std::string, Fused>> FusedModules(const AdapterExport& adapter,
                                                          const models::AdapterNames& names) {
  RETURN_IF_ERROR(CheckAdapter(adapter));
  if (names.model().originals == models::OriginalNames::kNone) {
    return absl::InvalidArgumentError(
        "the model's family has no names of its authors; FLUX.1, FLUX.2, Qwen-Image, SD3 and Z-Image have, others are "
        "exported as PEFT files");
  }
  ASSIGN_OR_RETURN(const auto modules, ByName(adapter, names));
  std::map<std::string, Fused> all;
  std::set<std::string_view> written;
  for (const auto& [underscored, named] : names.originals()) {
    // XLabs' names are further names of the same modules.
    if (underscored.find("_processor_") != std::string::npos) continue;
    std::vector<const AdapterModule*> parts;
    bool is_trained = false;
    for (const models::ProductSpec* product : named.modules) {
      const auto module = modules.find(product->name);
      parts.push_back(module == modules.end() ? nullptr : module->second);
      if (parts.back() == nullptr) continue;
      is_trained = true;
      written.insert(product->name);
    }
    if (is_trained) all[underscored] = Fuse(named, parts);
  }
  for (const auto& [name, module] : modules) {
    if (written.contains(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("adapter module ", base::Quote(name), " has no name of the model's authors; export a PEFT file"));
  }
  return all;
}

}  // namespace

absl::Status WriteKohyaFile(const std::string& path, const AdapterExport& adapter, const models::AdapterNames& names) {
  ASSIGN_OR_RETURN(const auto modules, FusedModules(adapter, names));
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [underscored, fused] : modules) {
    const std::string name = absl::StrCat("lora_unet_", underscored);
    tensors[name + ".lora_down.weight"] = fused.down;
    tensors[name + ".lora_up.weight"] = fused.up;
    tensors[name + ".alpha"] = at::scalar_tensor(fused.alpha, at::kFloat);
  }
  const FamilyNames family = NamesOf(names);
  std::map<std::string, std::string> header = OriginHeader(adapter);
  header["ss_network_module"] = family.network;
  header["ss_network_dim"] = absl::StrCat(CommonRank(adapter.modules));
  header["ss_network_alpha"] = base::JsonNumber(CommonAlpha(adapter.modules));
  header["ss_base_model_version"] = family.version;
  header["modelspec.architecture"] = family.architecture;
  return WriteTensors(path, tensors, header);
}

absl::Status WriteComfyFile(const std::string& path, const AdapterExport& adapter, const models::AdapterNames& names) {
  ASSIGN_OR_RETURN(const auto modules, FusedModules(adapter, names));
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [underscored, fused] : modules) {
    const std::string name = absl::StrCat("diffusion_model.", names.Original(underscored)->original);
    tensors[name + ".lora_A.weight"] = fused.down;
    tensors[name + ".lora_B.weight"] = fused.up * (fused.alpha / static_cast<double>(fused.down.size(0)));
  }
  return WriteTensors(path, tensors, OriginHeader(adapter));
}

}  // namespace tessera::runtime
