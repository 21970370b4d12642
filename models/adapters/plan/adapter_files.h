// The files of an adapter: a safetensors file, a folder as PEFT writes it, with adapter_model.safetensors and perhaps
// adapter_config.json, whose adapter_model.safetensors means the folder, or one as diffusers writes it, with
// pytorch_lora_weights.safetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/adapters/plan/adapter_names.h"
#include "models/adapters/plan/adapter_plan.h"
#include "models/weights/safetensors.h"

namespace tessera::models {

struct AdapterFiles {
  std::string tensors, config;  // paths; config: empty where there is none
  std::string name;             // for messages: the last part of the path
};

// The file of tensors in the folder; empty where there is none.
std::string TensorsInFolder(const std::string& folder);

// AdapterFault::kNotAnAdapter for a folder that is none; a file that is not there is for who opens it.
absl::StatusOr<AdapterFiles> FilesOf(const std::string& path);

// An adapter whose header and configuration were read and fit a model.
struct PlannedAdapter {
  SafetensorsFile file;
  std::vector<PlannedFactors> factors;  // point into the file
  std::vector<std::string> embeddings;  // tensors that are left out
};

// The warning about such tensors of the adapter of that name; empty where there are none.
std::string EmbeddingsWarning(const std::string& adapter, const std::vector<std::string>& embeddings);

// Errors as PlanAdapter and of reading the files, which messages call `files.name`.
absl::StatusOr<PlannedAdapter> PlanFiles(const AdapterFiles& files, const AdapterNames& names);

// AdapterFault::kNotFinite where one of the tensor's values in `bytes` is NaN or infinite.
absl::Status CheckFinite(const SafetensorsFile& file, const StoredTensor& tensor, std::span<const std::byte> bytes);

// Where files of `tessera train` say in their headers what they were trained on, for how long, and to predict what,
// which no other program reads.
inline constexpr char kBaseDigestKey[] = "tessera.base_digest";
inline constexpr char kStepKey[] = "tessera.step";
inline constexpr char kPredictionTypeKey[] = "tessera.prediction_type";

// What a file says of where it comes from.
struct AdapterOrigin {
  int64_t step = 0;                     // of its training; 0: it does not say
  std::vector<std::string> embeddings;  // tensors that are left out
};

// Whether the adapter at `path` fits the model: everything of the file that a worker would refuse is refused, and
// nothing of it is kept. Messages call it `name`.
absl::StatusOr<AdapterOrigin> CheckAdapter(const std::string& path, const std::string& name,
                                           const AdaptableModel& model);

}  // namespace tessera::models
