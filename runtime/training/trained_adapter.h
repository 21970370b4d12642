// A LoRA adapter that is being trained (Hu et al., 2021): its factors beside the matrix products of a transformer, and
// the same factors as parameters that gradients and optimizer know.
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
  // Ends of the modules' dotted names: "to_q" is every module whose last names are that. None may match nothing.
  std::vector<std::string> targets;
  int64_t rank = 16;
  double alpha = 16;  // the factors' product is scaled by alpha / rank
  control::NetworkInit init = control::NetworkInit::kKaiming;
  at::ScalarType dtype = at::kDouble;  // of the model
  uint64_t seed = 0;                   // of the run
  // Names of all modules of the model, in its order, where other pipeline stages have some of them; empty: those of the
  // parameters.
  std::vector<std::string> modules = {};
};

struct TrainedAdapter {
  parallel::AdapterFactors factors;  // of this rank's part of the transformer
  // "<module>.lora_A.weight" [rank, in] and "<module>.lora_B.weight" [out, rank] of each module, in the order of the
  // model's parameters; they share the factors' storage and require gradients. Split over the tensor axis as the
  // module's weight is: A where that is split by inputs, B where it is split by outputs.
  std::vector<models::Param> params;
};

// The adapter at the start of a run, beside a model that was loaded for training (Family::parameters), whose own
// parameters no longer require gradients afterwards. B is zero. A is drawn for the whole module, so that each rank has
// its part of the same numbers: uniform within 1 / sqrt(in) (PEFT's default, kaiming with a = sqrt(5)), or normal with
// deviation 1 / rank. InvalidArgument: a target that matches no module of the model, with the nearest.
absl::StatusOr<TrainedAdapter> MakeTrainedAdapter(std::span<const models::Param> model,
                                                  const models::TensorShard& shard, const AdapterOptions& options);

}  // namespace tessera::runtime
