// One image on its way through the denoiser.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "models/families/family.h"
#include "runtime/denoising/noise_source.h"
#include "runtime/denoising/prepared_branch.h"
#include "runtime/samplers/sampler.h"

namespace tessera::runtime {

// Each job has its own step, sampler history and noise, so jobs that started at different times can share a batch.
struct DenoiseJob {
  bool done() const { return next_step >= sampler->num_steps(); }

  uint64_t id = 0;  // in records of steps
  models::LatentGeometry geometry;
  models::Guidance guidance;
  models::SharedAdapters adapters;
  // Its own step is that of `latents`: on pipeline stages after the first it stays at the start.
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<NoiseSource> noise;
  at::Tensor latents;  // [channels, height, width] in max(fp32, model dtype), on the model's device

  // Kept by the Denoiser.
  int next_step = 0;      // that has not been begun
  bool all_whole = true;  // no step went patch by patch, so the result is that of one rank
  at::Tensor state;  // [2] int64, on the model's device: kernels::WeightedSums' of the latents that this rank moved;
                     // undefined: no step was begun
  at::Tensor timesteps;  // [steps] in fp64, on the model's device; undefined until PrepareBranch
  std::vector<std::unique_ptr<PreparedBranch>> prepared;  // by branch; null until PrepareBranch
};

// Branch `branch` of the job, prepared once: by the first call.
PreparedBranch& PrepareBranch(DenoiseJob& job, size_t branch, const models::Family& family,
                              const parallel::RankGroups& groups);

// The sampler of a job of that size, with the schedule that the family's reference pipeline asks for.
absl::StatusOr<std::unique_ptr<Sampler>> MakeSampler(const SamplerConfig& config, int steps,
                                                     const models::Family& family,
                                                     const models::LatentGeometry& geometry);

// Whether the job's latents are finite after all steps begun. Waits for the device.
bool IsFinite(const DenoiseJob& job);

// A state of latents of which nothing is known yet.
at::Tensor FreshState(at::Device device);

// Draws the job's initial latents: standard normal times the sampler's starting sigma.
void DrawInitialLatents(DenoiseJob& job, const models::Family& family);

}  // namespace tessera::runtime
