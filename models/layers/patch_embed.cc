#include "models/layers/patch_embed.h"

#include "kernels/ops.h"

namespace tessera::models {

PatchEmbed::PatchEmbed(const ParamScope& scope, int64_t channels, int64_t patch, int64_t width)
    : weight_(scope.Add("weight", {width, channels, patch, patch})), bias_(scope.Add("bias", {width})) {}

at::Tensor PatchEmbed::Forward(const at::Tensor& patches) const {
  return kernels::LinearProduct(patches, weight_.flatten(1), bias_);
}

}  // namespace tessera::models
