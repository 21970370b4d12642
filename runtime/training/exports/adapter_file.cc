#include "runtime/training/exports/adapter_file.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files/atomic_file.h"
#include "base/files/private_files.h"
#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "base/macros/status_macros.h"
#include "models/loading/torch_types.h"
#include "models/weights/safetensors_writer.h"

namespace tessera::runtime {
namespace {

constexpr char kDownEnd[] = ".lora_A.weight", kUpEnd[] = ".lora_B.weight";

absl::Status CheckModule(const AdapterModule& module) {
  const auto error = [&](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("adapter module ", base::Quote(module.name), ": ", parts...));
  };
  const at::Tensor &a = module.a, &b = module.b;
  if (a.dim() != 2 || b.dim() != 2 || a.size(0) != b.size(1) || a.size(0) == 0) {
    return error("the factors [", absl::StrJoin(a.sizes(), ", "), "] and [", absl::StrJoin(b.sizes(), ", "),
                 "] must be [rank, in] and [out, rank]");
  }
  if (a.scalar_type() != b.scalar_type() || !at::isFloatingType(a.scalar_type()) ||
      !models::StoredTypeOf(a.scalar_type())) {
    return error("the factors are of the types ", c10::toString(a.scalar_type()), " and ",
                 c10::toString(b.scalar_type()), "; both must be of one floating-point type that files have");
  }
  if (!a.isfinite().all().item<bool>() || !b.isfinite().all().item<bool>()) {
    return error("a factor has numbers that are not finite");
  }
  return std::isfinite(module.alpha) ? absl::OkStatus() : error("alpha is not finite");
}

// Returns the value that most modules have; of several the smallest.
template <class Value, class Of>
Value MostFrequent(const std::vector<AdapterModule>& modules, const Of& of) {
  std::map<Value, int> counts;
  for (const AdapterModule& module : modules) ++counts[of(module)];
  return std::max_element(counts.begin(), counts.end(),
                          [](const auto& x, const auto& y) { return x.second < y.second; })
      ->first;
}

std::string PatternOf(const AdapterModule& module, const std::vector<AdapterModule>& modules) {
  const std::string end = absl::StrCat(".", module.name);
  const bool is_end_of_another = std::any_of(modules.begin(), modules.end(),
                                             [&](const AdapterModule& other) { return other.name.ends_with(end); });
  return is_end_of_another ? absl::StrCat("^", module.name) : module.name;
}

void WriteAlpha(double alpha, base::JsonWriter& json) {
  if (alpha == std::floor(alpha) && std::abs(alpha) < 1e9) {
    json.Int(static_cast<int64_t>(alpha));
  } else {
    json.Number(alpha);
  }
}

std::map<std::string, at::Tensor> Factors(const AdapterExport& adapter, const std::string& prefix) {
  std::map<std::string, at::Tensor> tensors;
  for (const AdapterModule& module : adapter.modules) {
    tensors[absl::StrCat(prefix, module.name, kDownEnd)] = module.a;
    tensors[absl::StrCat(prefix, module.name, kUpEnd)] = module.b;
  }
  return tensors;
}

}  // namespace

int64_t CommonRank(const std::vector<AdapterModule>& modules) {
  return MostFrequent<int64_t>(modules, [](const AdapterModule& module) { return module.a.size(0); });
}

double CommonAlpha(const std::vector<AdapterModule>& modules) {
  return MostFrequent<double>(modules, [](const AdapterModule& module) { return module.alpha; });
}

std::map<std::string, std::string> OriginHeader(const AdapterExport& adapter) {
  std::map<std::string, std::string> header = {
      {"format", "pt"}, {kBaseDigestKey, adapter.base_digest}, {kStepKey, absl::StrCat(adapter.step)}};
  if (!adapter.prediction_type.empty()) header[kPredictionTypeKey] = adapter.prediction_type;
  if (!adapter.trigger_phrase.empty()) header[kTriggerPhraseKey] = adapter.trigger_phrase;
  return header;
}

absl::Status CheckAdapter(const AdapterExport& adapter) {
  if (adapter.modules.empty()) return absl::InvalidArgumentError("an adapter must have at least one module");
  std::set<std::string_view> names;
  for (const AdapterModule& module : adapter.modules) {
    if (!names.insert(module.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("adapter module ", base::Quote(module.name), " is given twice"));
    }
    RETURN_IF_ERROR(CheckModule(module));
  }
  return absl::OkStatus();
}

std::string LoraConfigJson(const std::vector<AdapterModule>& modules, const std::string& prefix) {
  const int64_t rank = CommonRank(modules);
  const double alpha = CommonAlpha(modules);
  // By name, so that the text does not depend on the order of the modules.
  std::map<std::string_view, const AdapterModule*> by_name;
  for (const AdapterModule& module : modules) by_name[module.name] = &module;

  base::JsonWriter json;
  const auto key = [&](const char* name) -> base::JsonWriter& { return json.Key(prefix + name); };
  json.BeginObject();
  key("alpha_pattern").BeginObject();
  for (const auto& [name, module] : by_name) {
    if (module->alpha != alpha) WriteAlpha(module->alpha, json.Key(PatternOf(*module, modules)));
  }
  json.EndObject();
  key("bias").String("none");
  WriteAlpha(alpha, key("lora_alpha"));
  key("lora_bias").Bool(false);
  key("lora_dropout").Number(0);
  key("peft_type").String("LORA");
  key("r").Int(rank);
  key("rank_pattern").BeginObject();
  for (const auto& [name, module] : by_name) {
    if (module->a.size(0) != rank) json.Key(PatternOf(*module, modules)).Int(module->a.size(0));
  }
  json.EndObject();
  key("target_modules").BeginArray();
  for (const auto& [name, module] : by_name) json.String(name);
  json.EndArray();
  key("use_dora").Bool(false);
  key("use_rslora").Bool(false);
  json.EndObject();
  return json.text();
}

absl::Status WritePeftFile(const std::string& path, const AdapterExport& adapter) {
  RETURN_IF_ERROR(CheckAdapter(adapter));
  std::map<std::string, std::string> header = OriginHeader(adapter);
  header["lora_adapter_metadata"] = LoraConfigJson(adapter.modules, "transformer.");
  return WriteTensors(path, Factors(adapter, "transformer."), header);
}

absl::Status WritePeftFolder(const std::string& folder, const AdapterExport& adapter) {
  RETURN_IF_ERROR(CheckAdapter(adapter));
  RETURN_IF_ERROR(base::MakeFolder(folder));
  RETURN_IF_ERROR(WriteTensors(absl::StrCat(folder, "/adapter_model.safetensors"),
                               Factors(adapter, "base_model.model."), OriginHeader(adapter)));
  return base::WriteFileAtomically(absl::StrCat(folder, "/adapter_config.json"),
                                   absl::StrCat(LoraConfigJson(adapter.modules, ""), "\n"));
}

absl::Status WriteTensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                          const std::map<std::string, std::string>& metadata) {
  std::vector<models::TensorEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back(
        {.name = name, .type = *models::StoredTypeOf(tensor.scalar_type()), .shape = tensor.sizes().vec()});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const models::TensorEntry& x, const models::TensorEntry& y) {
    return models::StoredTypeSize(x.type) > models::StoredTypeSize(y.type);
  });
  ASSIGN_OR_RETURN(models::SafetensorsWriter writer, models::SafetensorsWriter::Create(path, entries, metadata));
  for (const models::TensorEntry& entry : entries) {
    const at::Tensor values = tensors.at(entry.name).detach().to(at::kCPU).contiguous();
    RETURN_IF_ERROR(writer.Append(
        entry.name, std::as_bytes(std::span(static_cast<const char*>(values.data_ptr()), values.nbytes()))));
  }
  return writer.Finish().status();
}

}  // namespace tessera::runtime
