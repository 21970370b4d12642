// The input layer of a transformer over patches: a convolution whose stride is its kernel, which is one matrix product
// per token. Its weight is stored as a convolution's.
#pragma once

#include <ATen/ATen.h>

#include "models/loading/param_table.h"

namespace tessera::models {

class PatchEmbed {
 public:
  // Names: weight [width, channels, patch, patch] and bias [width] below the scope.
  PatchEmbed(const ParamScope& scope, int64_t channels, int64_t patch, int64_t width);

  // patches [b, n, channels·patch·patch] as Patchify orders them → [b, n, width].
  at::Tensor Forward(const at::Tensor& patches) const;

 private:
  at::Tensor weight_, bias_;
};

}  // namespace tessera::models
