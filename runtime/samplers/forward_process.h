// Computes the forward process that a diffusion or flow model is trained on: noise is added to clean samples.
#pragma once

#include <ATen/ATen.h>

#include <span>

#include "runtime/samplers/schedule.h"

namespace tessera::runtime {

// Returns alpha x0 + sigma noise, with one level for each sample of the batch. x0 and noise [batch, ...] have one shape
// and dtype; levels.size() == batch. Computed in fp64 if x0 is fp64, otherwise in fp32, and returned in x0's dtype.
at::Tensor AddNoise(const at::Tensor& x0, const at::Tensor& noise, std::span<const NoiseLevel> levels);

// Returns alpha noise - sigma x0, the target of a v-prediction model. Shapes and dtypes are those of AddNoise.
at::Tensor Velocity(const at::Tensor& x0, const at::Tensor& noise, std::span<const NoiseLevel> levels);

}  // namespace tessera::runtime
