// An adapter (LoRA) file in memory: one rank's part of its factors.
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

// What one rank holds of an adapter, and in which form.
struct AdapterPlace {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  TensorShard tensor;         // of the transformer
  bool text_encoders = true;  // else another rank has them
  at::Device text_device = at::kCPU;
};

struct Adapter {
  // SHA-256 of the file, in hexadecimal; of a PEFT folder that of adapter_model.safetensors and adapter_config.json.
  std::string digest;
  int64_t bytes = 0;                    // of this rank's factors
  std::string prediction_type;          // that it was trained to, as in the file's header; empty: it does not say
  std::vector<std::string> embeddings;  // tensors of the file that are left out
  // By component and module; the scale is alpha / rank.
  std::map<std::string, std::map<std::string, parallel::LowRankFactors>> components;
};

// Reads an adapter, a safetensors file or a folder of PEFT or diffusers (or the adapter_model.safetensors in one); the
// formats are those of adapter_plan.h. The file is checked whole, values included, and every rank comes to the same
// answer. Errors name the file by the last part of its path: those of AdapterError; NotFound; Aborted if the file
// changed while it was read.
absl::StatusOr<Adapter> ReadAdapter(const std::string& path, const AdaptableModel& model, const AdapterPlace& place);

// The digest that ReadAdapter gives.
absl::StatusOr<std::string> AdapterDigest(const std::string& path);

// This rank's part of a module's whole factors, a [rank, in] and b [out, rank]: see parallel::LowRankFactors.
parallel::LowRankFactors ShardOf(const parallel::LowRankFactors& whole, const ProductSpec& module,
                                 const TensorShard& shard);

// One of a job's adapters.
struct ScaledAdapter {
  std::reference_wrapper<const Adapter> adapter;
  double scale = 1;
  std::string name = {};  // for warnings
};

// The sum of the adapters, each times its scale; those with scale 0 leave nothing. Null where nothing is left. Those
// that say what they were trained to predict must agree.
SharedAdapters AddAdapters(std::span<const ScaledAdapter> adapters);

}  // namespace tessera::models
