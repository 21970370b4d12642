// TrainedAdapter is a LoRA adapter in training (Hu et al., 2021): the factors that are added to a transformer's matrix
// products, and the same factors as parameters for gradients and optimizer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "control/training/config.h"
#include "models/loading/param_table.h"
#include "parallel/adapter_factors.h"

namespace tessera::runtime {

struct AdapterOptions {
  // As in control/training/target_modules.h. Each must select at least one module.
  std::vector<std::string> targets;
  int64_t rank = 16;
  double alpha = 16;  // the product of the factors is scaled by alpha / rank
  control::NetworkInit init = control::NetworkInit::kKaiming;
  at::ScalarType dtype = at::kDouble;  // of the model
  uint64_t seed = 0;                   // of the run
  // Names of all matrix products of the model, in its order, those of other pipeline stages included; empty: all
  // matrices of the parameters.
  std::vector<std::string> modules = {};
};

struct TrainedAdapter {
  parallel::AdapterFactors factors;  // for this rank's part of the transformer
  // "<module>.lora_A.weight" [rank, in] and "<module>.lora_B.weight" [out, rank] of each module, in the order of the
  // model's parameters; they share the factors' storage and require gradients. They are split over the tensor axis like
  // the module's weight: A if that is split by inputs, B if it is split by outputs.
  std::vector<models::Param> params;
};

// Makes the initial adapter of a run for a model that was loaded for training (Family::parameters); afterwards the
// model's parameters no longer require gradients. B is zero. A is drawn for the whole module, so that each rank has a
// part of the same numbers: uniform within 1 / sqrt(in) (PEFT's default, kaiming with a = sqrt(5)), or normal with
// standard deviation 1 / rank. Returns the error of control::CheckTargets.
absl::StatusOr<TrainedAdapter> MakeTrainedAdapter(std::span<const models::Param> model,
                                                  const models::TensorShard& shard, const AdapterOptions& options);

}  // namespace tessera::runtime
