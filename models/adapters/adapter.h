// Holds one rank's part of an adapter's (LoRA) factors in memory.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/adapters/adapter_set.h"
#include "models/adapters/plan/adapter_names.h"
#include "models/loading/param_table.h"

namespace tessera::models {

// Which part of an adapter one rank holds, and in which form.
struct AdapterPlace {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  TensorShard tensor;         // the transformer's shard
  bool text_encoders = true;  // whether this rank has the text encoders
  at::Device text_device = at::kCPU;
};

struct Adapter {
  // SHA-256 of the file in hexadecimal; for a PEFT folder, of adapter_model.safetensors and adapter_config.json.
  std::string digest;
  int64_t bytes = 0;                    // of this rank's factors
  std::string prediction_type;          // that it was trained for, from the file's header; empty if the header has none
  std::vector<std::string> embeddings;  // tensors of the file that are not used
  // By component and module. The scale is alpha / rank.
  std::map<std::string, std::map<std::string, parallel::LowRankFactors>> components;
};

// Reads an adapter: a safetensors file, a PEFT or diffusers folder, or the adapter_model.safetensors in one.
// adapter_plan.h lists the formats. The whole file is checked, including its values, so that every rank returns the
// same result. Errors name the file by the last part of its path. Returns the errors of AdapterError; NotFound; Aborted
// if the file changed while it was read.
absl::StatusOr<Adapter> ReadAdapter(const std::string& path, const AdaptableModel& model, const AdapterPlace& place);

// Returns the digest that ReadAdapter would set.
absl::StatusOr<std::string> AdapterDigest(const std::string& path);

// Returns this rank's part of a module's whole factors, a [rank, in] and b [out, rank]; see parallel::LowRankFactors.
parallel::LowRankFactors ShardOf(const parallel::LowRankFactors& whole, const ProductSpec& module,
                                 const TensorShard& shard);

// An adapter of a job, with its scale.
struct ScaledAdapter {
  std::reference_wrapper<const Adapter> adapter;
  double scale = 1;
  std::string name = {};  // for warnings
};

// Returns the sum of the adapters, each multiplied by its scale; adapters with scale 0 are dropped. Null if none is
// left. All adapters that state a prediction type must state the same one.
SharedAdapters AddAdapters(std::span<const ScaledAdapter> adapters);

}  // namespace tessera::models
