#include "models/layers/embedding.h"

#include <cmath>

#include "kernels/ops.h"

namespace tessera::models {

at::Tensor Sinusoid(const at::Tensor& values, at::ScalarType dtype, int64_t channels, double shift) {
  const int64_t half = channels / 2;
  const at::Tensor k = at::arange(half, at::TensorOptions(dtype).device(values.device()));
  const at::Tensor frequencies = at::exp(k * -std::log(10000.0) / (static_cast<double>(half) - shift));
  const at::Tensor angles = values.to(dtype).unsqueeze(1) * frequencies;
  return at::cat({kernels::Cos(angles), kernels::Sin(angles)}, 1);
}

EmbeddingMlp::EmbeddingMlp(const ParamScope& scope, int64_t in, int64_t hidden, int64_t out, bool bias)
    : first_(scope / "linear_1", in, hidden, {.bias = bias}),
      second_(scope / "linear_2", hidden, out, {.bias = bias}) {}

at::Tensor EmbeddingMlp::Forward(const at::Tensor& x, const parallel::ForwardContext& context) const {
  return second_.Forward(kernels::Silu(first_.Forward(x, context)), context);
}

}  // namespace tessera::models
