#include "models/layers/folded_input.h"

#include "kernels/ops.h"
#include "kernels/quantized_ops.h"

namespace tessera::models {

ProductInput LayerNormModulateFor(const Linear& product, const at::Tensor& x, const at::Tensor& shift,
                                  const at::Tensor& scale, double eps, const parallel::ForwardContext& context) {
  if (product.TakesQuantizedRows(context)) return kernels::QuantizedLayerNormModulate(x, shift, scale, eps);
  return kernels::LayerNormModulate(x, shift, scale, eps);
}

ProductInput LayerNormShiftFor(const Linear& product, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& shift, double eps, const parallel::ForwardContext& context) {
  if (product.TakesQuantizedRows(context)) return kernels::QuantizedLayerNormShift(x, weight, shift, eps);
  return kernels::LayerNormShift(x, weight, shift, eps);
}

std::tuple<at::Tensor, ProductInput> GatedResidualNormModulateFor(const Linear& product, const at::Tensor& x,
                                                                  const std::optional<at::Tensor>& gate,
                                                                  const at::Tensor& y, const at::Tensor& shift,
                                                                  const at::Tensor& scale, double eps,
                                                                  const parallel::ForwardContext& context) {
  if (product.TakesQuantizedRows(context)) {
    return kernels::QuantizedResidualNormModulate(x, gate, y, shift, scale, eps);
  }
  return kernels::GatedResidualNormModulate(x, gate, y, shift, scale, eps);
}

std::tuple<at::Tensor, ProductInput> ResidualNormFor(const Linear& product, const at::Tensor& x, const at::Tensor& y,
                                                     const at::Tensor& weight, const at::Tensor& bias, double eps,
                                                     const parallel::ForwardContext& context) {
  if (product.TakesQuantizedRows(context)) return kernels::QuantizedResidualNorm(x, y, weight, bias, eps);
  return kernels::ResidualNorm(x, y, weight, bias, eps);
}

ProductInput SwiGluFor(const Linear& product, const at::Tensor& gate, const at::Tensor& value,
                       const parallel::ForwardContext& context) {
  if (product.TakesQuantizedRows(context)) return kernels::QuantizedSwiGlu(gate, value);
  return kernels::SwiGlu(gate, value);
}

ProductInput ScaledRmsNormFor(const Linear& product, const at::Tensor& x, const at::Tensor& weight,
                              const std::optional<at::Tensor>& scale, double eps,
                              const parallel::ForwardContext& context) {
  const std::optional<at::Tensor> factor = scale.has_value() ? std::optional(1 + *scale) : std::nullopt;
  if (product.TakesQuantizedRows(context)) return kernels::QuantizedRmsNorm(x, weight, factor, eps);
  const at::Tensor normalised = kernels::RmsNorm(x, weight, eps);
  return factor.has_value() ? normalised * factor->unsqueeze(1) : normalised;
}

at::Tensor GeluTanhMlp(const Linear& in, const Linear& out, const ProductInput& x,
                       const parallel::ForwardContext& context) {
  if (!out.TakesQuantizedRows(context)) return out.Forward(in.ForwardGeluTanh(x, context), context);
  return out.Forward(kernels::QuantizedGeluTanh(in.Forward(x, context)), context);
}

}  // namespace tessera::models
