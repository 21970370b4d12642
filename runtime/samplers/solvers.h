// The samplers' classes and the formulas that they share. Private to the samplers; others use sampler.h.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "runtime/samplers/sampler.h"

namespace tessera {

std::unique_ptr<Sampler> MakeDdpmSampler(const SamplerConfig& config, Schedule schedule);
std::unique_ptr<Sampler> MakeDdimSampler(const SamplerConfig& config, Schedule schedule);
std::unique_ptr<Sampler> MakeEulerSampler(const SamplerConfig& config, Schedule schedule);
std::unique_ptr<Sampler> MakeDpmSolverSampler(const SamplerConfig& config, Schedule schedule);
std::unique_ptr<Sampler> MakeFlowEulerSampler(const SamplerConfig& config, Schedule schedule);

// x0 of sample = alpha x0 + sigma noise, from what the model predicts. Flow: alpha = 1 - sigma.
at::Tensor PredictedSample(PredictionType type, const at::Tensor& sample, const at::Tensor& prediction,
                           const NoiseLevel& level);
// The noise of the same.
at::Tensor PredictedNoise(PredictionType type, const at::Tensor& sample, const at::Tensor& prediction,
                          const NoiseLevel& level);

// Dynamic thresholding (Imagen): each sample of the batch is clipped to its own quantile of absolute values, at least 1
// and at most max_value, and divided by it. The quantile is over the whole sample, interpolated linearly.
at::Tensor DynamicThreshold(const at::Tensor& sample, double ratio, double max_value);

}  // namespace tessera
