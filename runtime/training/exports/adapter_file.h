// Exports a trained low-rank adapter to the file formats that other programs load.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/adapters/plan/adapter_files.h"

namespace tessera::runtime {

// The factors of one module: its weight [out, in] changes by (alpha / rank) b a.
struct AdapterModule {
  std::string name;  // in diffusers, without the component: "transformer_blocks.0.attn.to_q"
  at::Tensor a;      // [rank, in]
  at::Tensor b;      // [out, rank]
  double alpha = 1;
};

// An adapter of a transformer, with its provenance.
struct AdapterExport {
  std::vector<AdapterModule> modules;
  std::string base_digest;      // of the model that it was trained on
  int64_t step = 0;             // of the run
  std::string prediction_type;  // that it was trained for, as spelled in scheduler_config.json
  std::string trigger_phrase;   // may be empty
};

using models::kBaseDigestKey;
using models::kPredictionTypeKey;
using models::kStepKey;
inline constexpr char kTriggerPhraseKey[] = "modelspec.trigger_phrase";

// Return the rank and the alpha that most modules have; of several the smallest.
int64_t CommonRank(const std::vector<AdapterModule>& modules);
double CommonAlpha(const std::vector<AdapterModule>& modules);

// Returns the header of a file with the adapter's provenance.
std::map<std::string, std::string> OriginHeader(const AdapterExport& adapter);

// Returns InvalidArgument, naming the module, if there is no module or one is given twice, if factors are not a pair of
// matrices of one rank and type, or if numbers or an alpha are not finite.
absl::Status CheckAdapter(const AdapterExport& adapter);

// Returns the fields of a PEFT LoraConfig that give every module its rank and alpha: those of most modules, and
// patterns for the others. PEFT matches a pattern, a regular expression, with the ends of names; these patterns are
// whole names, with a "^" if another module's name ends in the same. The result is a JSON object in which every key has
// the prefix ("transformer.").
std::string LoraConfigJson(const std::vector<AdapterModule>& modules, const std::string& prefix);

// Writes a safetensors file like diffusers' save_lora_adapter: transformer.<module>.lora_A.weight and lora_B.weight,
// and the header's lora_adapter_metadata with rank and alpha. Returns the errors of CheckAdapter and
// base::WriteFileAtomically.
absl::Status WritePeftFile(const std::string& path, const AdapterExport& adapter);

// Writes the folder that PEFT itself writes and reads, in which adapters of families without a loader in diffusers
// (PixArt, HunyuanDiT) are shared: adapter_model.safetensors with base_model.model.<module>.lora_A.weight, and
// adapter_config.json, which is written last. The folder is created if it does not exist. Returns the errors of
// WritePeftFile.
absl::Status WritePeftFolder(const std::string& folder, const AdapterExport& adapter);

// Writes tensors, each [rows, columns] or a scalar, with that header. Returns the errors of base::WriteFileAtomically.
absl::Status WriteTensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                          const std::map<std::string, std::string>& metadata);

}  // namespace tessera::runtime
