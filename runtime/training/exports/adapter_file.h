// A trained low-rank adapter as the files that other programs load.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/adapters/plan/adapter_files.h"
#include "runtime/training/checkpoints/checkpoint_reader.h"

namespace tessera::runtime {

// The factors of one module: its weight [out, in] changes by (alpha / rank) b a.
struct AdapterModule {
  std::string name;  // diffusers', without the component: "transformer_blocks.0.attn.to_q"
  at::Tensor a;      // [rank, in]
  at::Tensor b;      // [out, rank]
  double alpha = 1;
};

// An adapter of a transformer and where it comes from.
struct AdapterExport {
  std::vector<AdapterModule> modules;
  std::string base_digest;      // of the model that it was trained on
  int64_t step = 0;             // of the run
  std::string prediction_type;  // that it was trained to, as scheduler_config.json spells it
  std::string trigger_phrase;   // may be empty
};

using models::kBaseDigestKey;
using models::kPredictionTypeKey;
using models::kStepKey;
inline constexpr char kTriggerPhraseKey[] = "modelspec.trigger_phrase";

// The modules whose factors a checkpoint has under <prefix><module>.lora_A.weight and .lora_B.weight, in the order of
// their names; the caller has had its files verified. InvalidArgument, naming the module, if one has one factor alone;
// else as CheckpointReader::Read.
absl::StatusOr<std::vector<AdapterModule>> ReadAdapterModules(CheckpointReader& checkpoint, const std::string& prefix,
                                                              double alpha);

// The rank, and the alpha, that most modules have; of several the smallest.
int64_t CommonRank(const std::vector<AdapterModule>& modules);
double CommonAlpha(const std::vector<AdapterModule>& modules);

// The header of a file with what is said above.
std::map<std::string, std::string> OriginHeader(const AdapterExport& adapter);

// InvalidArgument, naming the module: none, one twice, factors that are no pair of matrices of one rank and type,
// numbers or an alpha that are not finite.
absl::Status CheckAdapter(const AdapterExport& adapter);

// The fields of a PEFT LoraConfig that give every module its rank and alpha: those of most modules, and patterns for
// the others. A pattern is a regular expression that PEFT matches with the ends of names; these are whole names, with a
// "^" where another module's name ends in the same. A JSON object, each key with the prefix before it ("transformer.").
std::string LoraConfigJson(const std::vector<AdapterModule>& modules, const std::string& prefix);

// A safetensors file as diffusers' save_lora_adapter writes it: transformer.<module>.lora_A.weight and lora_B.weight,
// the header's lora_adapter_metadata with rank and alpha. Errors as CheckAdapter and base::WriteFileAtomically.
absl::Status WritePeftFile(const std::string& path, const AdapterExport& adapter);

// The folder that PEFT itself writes and reads, which is how adapters of families without a loader in diffusers
// (PixArt, HunyuanDiT) are passed on: adapter_model.safetensors with base_model.model.<module>.lora_A.weight, and
// adapter_config.json, which goes last. The folder is made if need be. Errors as WritePeftFile.
absl::Status WritePeftFolder(const std::string& folder, const AdapterExport& adapter);

// Writes tensors, each [rows, columns] or a scalar, with that header. Errors as base::WriteFileAtomically.
absl::Status WriteTensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                          const std::map<std::string, std::string>& metadata);

}  // namespace tessera::runtime
