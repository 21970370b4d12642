// Finds and checks the files of an adapter. An adapter is one of: a safetensors file; a PEFT folder with
// adapter_model.safetensors and optionally adapter_config.json (the path of the former selects the folder); a diffusers
// folder with pytorch_lora_weights.safetensors.
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
  std::string tensors, config;  // paths; `config` is empty if there is no configuration
  std::string name;             // for messages: the last part of the path
};

// Returns the path of the folder's tensor file; empty if there is none.
std::string TensorsInFolder(const std::string& folder);

// Returns AdapterFault::kNotAnAdapter for a folder that is not an adapter. A missing file is reported when it is
// opened.
absl::StatusOr<AdapterFiles> FilesOf(const std::string& path);

// An adapter whose header and configuration have been read and fit a model.
struct PlannedAdapter {
  SafetensorsFile file;
  std::vector<PlannedFactors> factors;  // point into the file
  std::vector<std::string> embeddings;  // tensors that are not used
};

// Returns the warning that the adapter's embeddings are not used; empty if there are none.
std::string EmbeddingsWarning(const std::string& adapter, const std::vector<std::string>& embeddings);

// Returns the errors of PlanAdapter and of reading the files; messages refer to the adapter as `files.name`.
absl::StatusOr<PlannedAdapter> PlanFiles(const AdapterFiles& files, const AdapterNames& names);

// Returns AdapterFault::kNotFinite if one of the tensor's values in `bytes` is NaN or infinite.
absl::Status CheckFinite(const SafetensorsFile& file, const StoredTensor& tensor, std::span<const std::byte> bytes);

// Keys in the headers of files written by `tessera train`: the base model, the training step, and the prediction type.
// No other program reads them.
inline constexpr char kBaseDigestKey[] = "tessera.base_digest";
inline constexpr char kStepKey[] = "tessera.step";
inline constexpr char kPredictionTypeKey[] = "tessera.prediction_type";

// The provenance of an adapter file.
struct AdapterOrigin {
  int64_t step = 0;                     // of its training; 0 if the file does not state it
  std::vector<std::string> embeddings;  // tensors that are not used
};

// Checks whether the adapter at `path` fits the model: returns every error that a worker would return, and keeps
// nothing in memory. Messages refer to the adapter as `name`.
absl::StatusOr<AdapterOrigin> CheckAdapter(const std::string& path, const std::string& name,
                                           const AdaptableModel& model);

}  // namespace tessera::models
