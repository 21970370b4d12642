// MaskBlend is the rule of a job that keeps a part of a given picture: after each step, the latents outside its mask
// are replaced by the picture's, at the noise level that the step has reached.
#pragma once

#include <ATen/ATen.h>

#include "absl/functional/function_ref.h"
#include "runtime/samplers/schedule.h"

namespace tessera::runtime {

// All tensors have the shape, dtype and device of the latents. Each element of the result depends only on the same
// element of its inputs, so parts of an image can be blended apart.
struct MaskBlend {
  at::Tensor mask;   // 1: the latents are used; 0: the picture
  at::Tensor clean;  // the picture's latents
  at::Tensor noise;  // that the job started with; the same in every step

  // Returns mask · latents + (1 − mask) · (clean latents with noise of that level). `state` is the state of
  // kernels::WeightedSums for the result.
  at::Tensor Apply(const at::Tensor& latents, const NoiseLevel& level, const at::Tensor& state) const;

  // Returns the rule for a part of the image, which `cut` returns of each tensor.
  MaskBlend Cut(absl::FunctionRef<at::Tensor(const at::Tensor&)> cut) const;
};

}  // namespace tessera::runtime
