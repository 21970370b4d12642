// The samplers of trajectories that the goldens have in fp64 throughout: the reference rounds its tables of noise
// levels to single precision, and so do this project's samplers; these do not.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/families/family.h"
#include "runtime/samplers/sampler.h"

namespace tessera::golden {

// As runtime::MakeSampler. Unimplemented for what is neither flow-euler nor a DPM-Solver over a table of noise.
absl::StatusOr<std::unique_ptr<runtime::Sampler>> MakeWideSampler(const runtime::SamplerConfig& config, int steps,
                                                                  const models::Family& family,
                                                                  const models::LatentGeometry& geometry);

}  // namespace tessera::golden
