#include "runtime/denoising/mask_blend.h"

#include "kernels/ops.h"

namespace tessera::runtime {

at::Tensor MaskBlend::Apply(const at::Tensor& latents, const NoiseLevel& level, const at::Tensor& state) const {
  const at::Tensor noisy = kernels::WeightedSums({clean, noise}, {level.alpha, level.sigma}, std::nullopt).front();
  return kernels::WeightedSums({mask * latents, (1 - mask) * noisy}, {1.0, 1.0}, state).front();
}

MaskBlend MaskBlend::Cut(absl::FunctionRef<at::Tensor(const at::Tensor&)> cut) const {
  return {.mask = cut(mask), .clean = cut(clean), .noise = cut(noise)};
}

}  // namespace tessera::runtime
