// Denoising, one timestep at a time: the loop itself belongs to whoever holds the command log.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <span>
#include <vector>

#include "models/family.h"
#include "parallel/rank_groups.h"
#include "runtime/noise_source.h"
#include "runtime/samplers/sampler.h"

namespace tessera {

// One image on its way. Each job has its own step, sampler history and noise, so jobs that started at different times
// can share a batch.
struct DenoiseJob {
  LatentGeometry geometry;
  Guidance guidance;
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<NoiseSource> noise;
  at::Tensor latents;  // [channels, height, width] in max(fp32, model dtype), on the model's device
};

// The sampler of a job of that size, with the schedule that the family's reference pipeline asks for.
absl::StatusOr<std::unique_ptr<Sampler>> MakeSampler(const SamplerConfig& config, int steps, const Family& family,
                                                     const LatentGeometry& geometry);

// Draws the job's initial latents: standard normal times the sampler's starting sigma.
void DrawInitialLatents(DenoiseJob& job, const Family& family);

// What the sampler of each job is given at its next step: the weighted sum of its branches' predictions, each
// [channels, height, width] in max(fp32, model dtype).
// On a mesh every rank passes the same batch and gets the same predictions.
std::vector<at::Tensor> Predict(const Family& family, std::span<DenoiseJob* const> batch, const RankGroups& groups);

class Denoiser {
 public:
  // Both outlive the denoiser.
  Denoiser(const Family& family, const RankGroups& groups) : family_(family), groups_(groups) {}

  // One timestep for each job of the batch, in as few forward passes as its branches' shapes allow (mostly one). The
  // jobs agree in geometry, and each has a step left. May throw what LibTorch throws, and std::runtime_error when a
  // job's latents stop being finite.
  void Step(std::span<DenoiseJob* const> batch);

 private:
  const Family& family_;
  const RankGroups& groups_;
};

}  // namespace tessera
