// Makes samplers for golden trajectories in fp64 throughout. The reference and this project's samplers round their
// tables of noise levels to single precision; these samplers do not.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/families/family.h"
#include "runtime/samplers/sampler.h"

namespace tessera::golden {

// Makes a sampler like runtime::MakeSampler. Returns Unimplemented unless the sampler is flow-euler or a DPM-Solver
// with a table of noise levels.
absl::StatusOr<std::unique_ptr<runtime::Sampler>> MakeWideSampler(const runtime::SamplerConfig& config, int steps,
                                                                  const models::Family& family,
                                                                  const models::LatentGeometry& geometry);

}  // namespace tessera::golden
