// Plans an adapter file with arbitrary tensors. A line of the input is a tensor, "TYPE ROWS COLUMNS NAME" with as many
// sizes as it has dimensions; "# TEXT" is the header's lora_adapter_metadata, "@ TEXT" the adapter_config.json next to
// the file, and the first line is the model; "!" before the type means that the values are not numbers. Thus every
// input is a readable file.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/json/json_writer.h"
#include "models/adapters/plan/adapter_error.h"
#include "models/adapters/plan/adapter_files.h"
#include "models/weights/safetensors.h"
#include "tests/support/safetensors_bytes.h"

namespace tessera::models {
namespace {

constexpr int64_t kWidth = 4, kMaxSize = 64;

void Require(bool holds) {
  if (!holds) std::abort();
}

void Add(AdaptableModel& model, const std::string& component, const std::string& prefix,
         std::initializer_list<const char*> names) {
  for (const char* name : names) {
    model.components[component].push_back({.name = prefix + name, .out = kWidth, .in = kWidth});
  }
}

// Returns the modules of a model with one block of each kind. All have one width, except those that are wider in every
// model.
AdaptableModel ModelOf(OriginalNames originals) {
  AdaptableModel model{.originals = originals, .components = {}};
  Add(model, "transformer", "transformer_blocks.0.",
      {"attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "norm1.linear"});
  Add(model, "transformer", "", {"proj_out", "norm_out.linear"});
  if (originals == OriginalNames::kNone) return model;
  Add(model, "transformer", "transformer_blocks.0.",
      {"attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "norm1_context.linear"});
  Add(model, "transformer", "", {"context_embedder"});
  Add(model, "text_encoder", "text_model.encoder.layers.0.self_attn.", {"q_proj", "k_proj", "v_proj"});
  if (originals == OriginalNames::kZImage) {
    for (const char* const layers : {"layers.0.", "context_refiner.0."}) {
      Add(model, "transformer", layers,
          {"attention.to_q", "attention.to_k", "attention.to_v", "attention.to_out.0", "feed_forward.w1"});
    }
  }
  if (originals == OriginalNames::kFlux2) {
    Add(model, "transformer", "single_transformer_blocks.0.attn.", {"to_qkv_mlp_proj", "to_out"});
    Add(model, "transformer", "", {"double_stream_modulation_img.linear"});
  }
  if (originals == OriginalNames::kFlux) {
    Add(model, "transformer", "single_transformer_blocks.0.", {"attn.to_q", "attn.to_k", "attn.to_v"});
    model.components["transformer"].push_back(
        {.name = "single_transformer_blocks.0.proj_mlp", .out = 2 * kWidth, .in = kWidth});
  }
  model.components["transformer"][1].aliases = {"transformer_blocks.0.attn.key"};
  return model;
}

struct Input {
  OriginalNames originals = OriginalNames::kNone;
  std::optional<std::string> config;
  std::string file;
};

Input Read(std::string_view text) {
  Input input;
  std::string data;
  base::JsonWriter header;
  header.BeginObject();
  bool first = true;
  for (const absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    if (std::exchange(first, false)) {
      input.originals = base::EnumOf<OriginalNames>(std::string(line)).value_or(OriginalNames::kNone);
      continue;
    }
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() < 2) continue;
    const std::string rest(line.substr(1));
    if (words[0] == "@") {
      input.config = rest;
      continue;
    }
    if (words[0] == "#") {
      header.Key("__metadata__").BeginObject();
      header.Key("lora_adapter_metadata").String(rest);
      header.EndObject();
      continue;
    }
    header.Key(std::string(words.back())).BeginObject();
    const bool is_finite = words[0][0] != '!';
    const std::string type(is_finite ? words[0] : words[0].substr(1));
    header.Key("dtype").String(type);
    header.Key("shape").BeginArray();
    const std::map<std::string, uint64_t> sizes = {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}};
    const auto element = sizes.find(type);
    uint64_t bytes = element == sizes.end() ? 1 : element->second;
    for (size_t i = 1; i + 1 < words.size() && i <= 4; ++i) {
      int64_t size = 0;
      if (!absl::SimpleAtoi(words[i], &size) || size < 0 || size > kMaxSize) size = kWidth;
      header.Int(size);
      bytes *= static_cast<uint64_t>(size);
    }
    header.EndArray();
    header.Key("data_offsets").BeginArray();
    header.Int(static_cast<int64_t>(data.size()));
    data.append(bytes, is_finite ? 'a' : '\xff');
    header.Int(static_cast<int64_t>(data.size()));
    header.EndArray();
    header.EndObject();
    if (data.size() > (size_t{1} << 22)) break;
  }
  header.EndObject();
  input.file = SafetensorsBytes(header.text(), data);
  return input;
}

void CheckPlan(const std::vector<PlannedFactors>& plan) {
  std::set<const ProductSpec*> modules;
  for (const PlannedFactors& factors : plan) {
    Require(modules.insert(factors.module).second);
    Require(factors.down->shape.size() == 2 && factors.up->shape.size() == 2);
    Require(factors.down->shape[0] >= 1 && factors.down->shape[0] == factors.up->shape[1]);
    Require(factors.down->shape[1] == factors.module->in);
    Require(factors.first_row >= 0 && factors.first_row + factors.module->out <= factors.up->shape[0]);
    Require(!factors.halves_exchanged || factors.up->shape[0] % 2 == 0);
    Require(std::isfinite(factors.scale));
  }
}

}  // namespace
}  // namespace tessera::models

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera::models;
  const Input input = Read({reinterpret_cast<const char*>(data), size});
  static const auto* const models =
      new std::map<OriginalNames, AdaptableModel>{{OriginalNames::kNone, ModelOf(OriginalNames::kNone)},
                                                  {OriginalNames::kFlux, ModelOf(OriginalNames::kFlux)},
                                                  {OriginalNames::kSd3, ModelOf(OriginalNames::kSd3)},
                                                  {OriginalNames::kZImage, ModelOf(OriginalNames::kZImage)},
                                                  {OriginalNames::kFlux2, ModelOf(OriginalNames::kFlux2)},
                                                  {OriginalNames::kQwenImage, ModelOf(OriginalNames::kQwenImage)}};
  const AdaptableModel& model = models->at(input.originals);
  const int memory = memfd_create("adapter", MFD_CLOEXEC);
  Require(memory >= 0 &&
          write(memory, input.file.data(), input.file.size()) == static_cast<ssize_t>(input.file.size()));
  const std::string path = absl::StrCat("/proc/self/fd/", memory);
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path, "fuzz");
  if (file.ok()) {
    const AdapterNames names(model);
    const auto plan = PlanAdapter(*file, input.config, names);
    if (plan.ok()) CheckPlan(plan->factors);
    Require(plan.ok() || FaultOf(plan.status()).has_value());  // every refusal has a fault
    if (!input.config.has_value()) {
      const absl::StatusOr<AdapterOrigin> checked = CheckAdapter(path, "fuzz", model);
      Require(!checked.ok() || plan.ok());
      Require(checked.ok() || !plan.ok() || FaultOf(checked.status()) == AdapterFault::kNotFinite);
    }
  }
  close(memory);
  return 0;
}
