// Embeds scalars and positions; shared by the families.
#pragma once

#include <ATen/ATen.h>

#include "models/layers/linear.h"

namespace tessera::models {

// Returns sinusoids of scalars: [cos, sin] of value · exp(−ln(10000) k / (channels/2 − shift)), k = 0 … channels/2 − 1.
// values [n] → [n, channels], computed and returned in `dtype` (fp32 or fp64). Source: DDPM's timestep embedding with
// the order flipped, as in the reference models.
at::Tensor Sinusoid(const at::Tensor& values, at::ScalarType dtype, int64_t channels = 256, double shift = 0);

// Linear, SiLU, Linear: embeds a sinusoid or a text. Parameter names: linear_1, linear_2.
class EmbeddingMlp {
 public:
  EmbeddingMlp(const ParamScope& scope, int64_t in, int64_t width) : EmbeddingMlp(scope, in, width, width) {}
  EmbeddingMlp(const ParamScope& scope, int64_t in, int64_t hidden, int64_t out, bool bias = true);

  // x [..., in] → [..., out].
  at::Tensor Forward(const at::Tensor& x, const parallel::ForwardContext& context) const;

 private:
  Linear first_, second_;
};

}  // namespace tessera::models
