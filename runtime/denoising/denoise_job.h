// DenoiseJob holds one image while it is denoised.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "models/families/family.h"
#include "runtime/denoising/mask_blend.h"
#include "runtime/denoising/noise_source.h"
#include "runtime/denoising/prepared_branch.h"
#include "runtime/samplers/sampler.h"

namespace tessera::runtime {

// Each job has a separate step counter, sampler history and noise, so jobs that started at different times can share a
// batch.
struct DenoiseJob {
  bool done() const { return next_step >= sampler->num_steps(); }
  int completed() const { return next_step - sampler->first_step(); }  // steps that were started

  uint64_t id = 0;  // for records of steps
  models::LatentGeometry geometry;
  models::Guidance guidance;
  models::SharedAdapters adapters;
  // Its step is the step of `latents`; on pipeline stages after the first it stays at the start.
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<NoiseSource> noise;
  at::Tensor latents;              // [channels, height, width] in max(fp32, model dtype), on the model's device
  std::optional<MaskBlend> blend;  // applied after each step; none: the steps alone make the latents
  // Patches [m, features] of pictures that the model looks at, and their grids, in the dtype and on the device of the
  // model.
  std::vector<at::Tensor> references;
  std::vector<models::TokenGrid> reference_grids;
  // [tokens, features], like the references: further features of the image's patches at every step. Undefined: none.
  at::Tensor condition;

  // The members below are maintained by the Denoiser.
  int next_step = 0;      // the first step of the sampler's schedule that has not been started
  bool all_whole = true;  // no step ran patch by patch, so the result equals that of one rank
  at::Tensor state;  // [2] int64, on the model's device: the state from kernels::WeightedSums for the latents that this
                     // rank updated; undefined before the first step
  at::Tensor timesteps;  // [steps] in fp64, on the model's device; undefined before PrepareBranch
  std::vector<std::unique_ptr<PreparedBranch>> prepared;  // by branch; null before PrepareBranch
};

// Returns branch `branch` of the job, which the first call prepares.
PreparedBranch& PrepareBranch(DenoiseJob& job, size_t branch, const models::Family& family,
                              const parallel::RankGroups& groups);

// Makes the sampler for a job of that size, with the schedule of the family's reference pipeline.
absl::StatusOr<std::unique_ptr<Sampler>> MakeSampler(const SamplerConfig& config, int steps,
                                                     const models::Family& family,
                                                     const models::LatentGeometry& geometry);

// Whether the job's latents are finite after all steps that were started. Waits for the device.
bool IsFinite(const DenoiseJob& job);

// Returns the state of latents about which nothing is known yet.
at::Tensor FreshState(at::Device device);

// Draws the job's initial latents: standard normal values multiplied by the sampler's initial sigma.
void DrawInitialLatents(DenoiseJob& job, const models::Family& family);

// What a job starts from instead of noise alone.
struct CleanStart {
  at::Tensor latents;  // of a picture, as the transformer reads them [channels, height, width]
  int first_step = 0;  // of the sampler's schedule; earlier steps are left out
  // [channels or 1, height, width]: 1 where the picture is changed, 0 where it is kept, and values between. Undefined:
  // the picture is changed everywhere.
  at::Tensor mask;
};

// Draws the noise of the job's initial latents and adds it to the picture's, at the level of the first step. Called in
// place of DrawInitialLatents.
void BeginFromPicture(DenoiseJob& job, const models::Family& family, const CleanStart& start);

}  // namespace tessera::runtime
