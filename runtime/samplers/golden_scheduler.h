// Runs one golden scheduler case: a file of timesteps, sigmas and whole trajectories of a reference sampler on a
// synthetic model, in the format of tests/golden/README.md, "Scheduler files". Any folder of that format will do.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "absl/status/statusor.h"
#include "models/weights/json.h"
#include "runtime/samplers/sampler_config.h"

namespace tessera {

// The comparison that came closest to its tolerance, or went furthest beyond.
struct GoldenSchedulerResult {
  double error = 0.0;      // largest absolute difference, relative to the largest expected value
  double tolerance = 0.0;  // 0: exact
  std::string where;       // "n20.prev_sample[3], model by formula"
  int comparisons = 0;     // how many tensors were compared

  bool passed() const { return comparisons > 0 && error <= tolerance; }
};

// A case's class and config as a scheduler_config.json of that content would be read.
absl::StatusOr<SamplerConfig> GoldenSamplerConfig(const std::string& class_name, const Json& config);

// `arguments` and `tolerance` are those of the case's entry in cases.json, `path` its safetensors file. The samples are
// computed in `dtype`, fp32 or fp64. Compared: the noise table; for every number of steps the timesteps (whole
// numbers exactly), sigmas, the first noise's scale, the model's inputs and all samples, with the recorded model
// outputs and with outputs by the formula; the forward process. Errors: a file or arguments that cannot be used.
absl::StatusOr<GoldenSchedulerResult> RunGoldenScheduler(const Json& arguments, const Json& tolerance,
                                                         const std::string& path, at::ScalarType dtype);

}  // namespace tessera
