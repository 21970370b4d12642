// The forward process that a diffusion or flow model is trained on: noise is added to clean samples.
#pragma once

#include <ATen/ATen.h>

#include <span>

#include "runtime/samplers/schedule.h"

namespace tessera::runtime {

// alpha x0 + sigma noise, with one level for each sample of the batch. x0, noise [batch, ...] of one shape and dtype;
// levels.size() == batch. Computed in fp64 if x0 is fp64, else in fp32, and returned in x0's dtype.
at::Tensor AddNoise(const at::Tensor& x0, const at::Tensor& noise, std::span<const NoiseLevel> levels);

// alpha noise - sigma x0: what a v-prediction model is trained to give. The same shapes and dtypes.
at::Tensor Velocity(const at::Tensor& x0, const at::Tensor& noise, std::span<const NoiseLevel> levels);

}  // namespace tessera::runtime
