// PatchEmbed is the input layer of a transformer over patches: a convolution whose stride equals its kernel, computed
// as one matrix product per token. Its weight is stored like a convolution's.
#pragma once

#include <ATen/ATen.h>

#include "models/loading/param_table.h"

namespace tessera::models {

class PatchEmbed {
 public:
  // Parameter names within the scope: weight [width, channels, patch, patch] and bias [width].
  PatchEmbed(const ParamScope& scope, int64_t channels, int64_t patch, int64_t width);

  // patches [b, n, channels·patch·patch] as Patchify orders them → [b, n, width].
  at::Tensor Forward(const at::Tensor& patches) const;

 private:
  at::Tensor weight_, bias_;
};

}  // namespace tessera::models
