#include "kernels/quantized_ops.h"

#include <torch/library.h>

#include "kernels/cpu/quantized_rows.h"
#include "kernels/ops.h"

namespace tessera::kernels {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using CodesAndScales = std::tuple<at::Tensor, at::Tensor>;
using SumAndRows = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

constexpr char kQuantizedLayerNorm[] = "tessera::quantized_layer_norm";
constexpr char kQuantizedResidualNorm[] = "tessera::quantized_residual_norm";
constexpr char kQuantizedRmsNorm[] = "tessera::quantized_rms_norm";
constexpr char kQuantizedGeluTanh[] = "tessera::quantized_gelu_tanh";
constexpr char kQuantizedSwiGlu[] = "tessera::quantized_swiglu";

// Separate passes, for devices without a version and for tensors that a version does not support.
CodesAndScales SeparateLayerNorm(const at::Tensor& x, const OptionalTensor& weight, const at::Tensor& shift,
                                 const OptionalTensor& scale, double eps) {
  return QuantizeActivations(scale.has_value() ? LayerNormModulate(x, shift, *scale, eps)
                                               : LayerNormShift(x, weight.value(), shift, eps));
}

SumAndRows SeparateResidualNorm(const at::Tensor& x, const OptionalTensor& gate, const at::Tensor& y,
                                const OptionalTensor& weight, const OptionalTensor& bias, const OptionalTensor& shift,
                                const OptionalTensor& scale, double eps) {
  const auto [sum, normalised] = scale.has_value() ? GatedResidualNormModulate(x, gate, y, shift.value(), *scale, eps)
                                                   : ResidualNorm(x, y, weight.value(), bias.value(), eps);
  const auto [codes, scales] = QuantizeActivations(normalised);
  return {sum, codes, scales};
}

CodesAndScales SeparateRmsNorm(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& factor,
                               double eps) {
  const at::Tensor normalised = RmsNorm(x, weight, eps);
  return QuantizeActivations(factor.has_value() ? normalised * factor->unsqueeze(1) : normalised);
}

CodesAndScales SeparateGeluTanh(const at::Tensor& x) { return QuantizeActivations(GeluTanh(x)); }

CodesAndScales SeparateSwiGlu(const at::Tensor& gate, const at::Tensor& value) {
  return QuantizeActivations(SwiGlu(gate, value));
}

CodesAndScales CpuLayerNorm(const at::Tensor& x, const OptionalTensor& weight, const at::Tensor& shift,
                            const OptionalTensor& scale, double eps) {
  return cpu::QuantizedLayerNorm(x, weight, shift, scale, eps, cpu::BestIsa());
}

SumAndRows CpuResidualNorm(const at::Tensor& x, const OptionalTensor& gate, const at::Tensor& y,
                           const OptionalTensor& weight, const OptionalTensor& bias, const OptionalTensor& shift,
                           const OptionalTensor& scale, double eps) {
  return cpu::QuantizedResidualNorm(x, gate, y, weight, bias, shift, scale, eps, cpu::BestIsa());
}

CodesAndScales CpuQuantizedRmsNorm(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& factor,
                                   double eps) {
  return cpu::QuantizedRmsNorm(x, weight, factor, eps, cpu::BestIsa());
}

CodesAndScales CpuQuantizedGeluTanh(const at::Tensor& x) { return cpu::QuantizedGeluTanh(x, cpu::BestIsa()); }

CodesAndScales CpuQuantizedSwiGlu(const at::Tensor& gate, const at::Tensor& value) {
  return cpu::QuantizedSwiGlu(gate, value, cpu::BestIsa());
}

// Calls the operator whose separate passes are kSeparate.
template <auto kSeparate, const char* kName, typename... Args>
auto CallQuantizing(const at::Tensor& x, const Args&... args) {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(kName, "").typed<std::remove_pointer_t<decltype(kSeparate)>>();
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) > 0 && x.is_floating_point(), kName, ": an input of ", x.sizes(), " ",
              x.scalar_type());
  TORCH_CHECK(!at::GradMode::is_enabled() || !x.requires_grad(), kName, " has no gradient");
  return handle.call(x, args...);
}

QuantizedRows AsRows(const CodesAndScales& rows, const at::Tensor& x) {
  return {.codes = std::get<0>(rows), .scales = std::get<1>(rows), .dtype = x.scalar_type()};
}

std::tuple<at::Tensor, QuantizedRows> AsSumAndRows(const SumAndRows& all, const at::Tensor& x) {
  const auto& [sum, codes, scales] = all;
  return {sum, {.codes = codes, .scales = scales, .dtype = x.scalar_type()}};
}

const OptionalTensor kNone;

}  // namespace

TORCH_LIBRARY_FRAGMENT(tessera, m) {
  m.def("quantized_layer_norm(Tensor x, Tensor? weight, Tensor shift, Tensor? scale, float eps) -> (Tensor, Tensor)");
  m.def(
      "quantized_residual_norm(Tensor x, Tensor? gate, Tensor y, Tensor? weight, Tensor? bias, Tensor? shift, Tensor? "
      "scale, float eps) -> (Tensor, Tensor, Tensor)");
  m.def("quantized_rms_norm(Tensor x, Tensor weight, Tensor? factor, float eps) -> (Tensor, Tensor)");
  m.def("quantized_gelu_tanh(Tensor x) -> (Tensor, Tensor)");
  m.def("quantized_swiglu(Tensor gate, Tensor value) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(tessera, CompositeExplicitAutograd, m) {
  m.impl("quantized_layer_norm", SeparateLayerNorm);
  m.impl("quantized_residual_norm", SeparateResidualNorm);
  m.impl("quantized_rms_norm", SeparateRmsNorm);
  m.impl("quantized_gelu_tanh", SeparateGeluTanh);
  m.impl("quantized_swiglu", SeparateSwiGlu);
}

TORCH_LIBRARY_IMPL(tessera, CPU, m) {
  m.impl("quantized_layer_norm", CpuLayerNorm);
  m.impl("quantized_residual_norm", CpuResidualNorm);
  m.impl("quantized_rms_norm", CpuQuantizedRmsNorm);
  m.impl("quantized_gelu_tanh", CpuQuantizedGeluTanh);
  m.impl("quantized_swiglu", CpuQuantizedSwiGlu);
}

QuantizedRows QuantizedLayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale,
                                         double eps) {
  return AsRows(CallQuantizing<&SeparateLayerNorm, kQuantizedLayerNorm>(x, kNone, shift, OptionalTensor(scale), eps),
                x);
}

QuantizedRows QuantizedLayerNormShift(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& shift,
                                      double eps) {
  return AsRows(CallQuantizing<&SeparateLayerNorm, kQuantizedLayerNorm>(x, OptionalTensor(weight), shift, kNone, eps),
                x);
}

std::tuple<at::Tensor, QuantizedRows> QuantizedResidualNormModulate(const at::Tensor& x,
                                                                    const std::optional<at::Tensor>& gate,
                                                                    const at::Tensor& y, const at::Tensor& shift,
                                                                    const at::Tensor& scale, double eps) {
  return AsSumAndRows(CallQuantizing<&SeparateResidualNorm, kQuantizedResidualNorm>(
                          x, gate, y, kNone, kNone, OptionalTensor(shift), OptionalTensor(scale), eps),
                      x);
}

std::tuple<at::Tensor, QuantizedRows> QuantizedResidualNorm(const at::Tensor& x, const at::Tensor& y,
                                                            const at::Tensor& weight, const at::Tensor& bias,
                                                            double eps) {
  return AsSumAndRows(CallQuantizing<&SeparateResidualNorm, kQuantizedResidualNorm>(
                          x, kNone, y, OptionalTensor(weight), OptionalTensor(bias), kNone, kNone, eps),
                      x);
}

QuantizedRows QuantizedRmsNorm(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& factor,
                               double eps) {
  TORCH_CHECK(!factor.has_value() || (x.dim() == 3 && factor->dim() == 2 && factor->size(0) == x.size(0) &&
                                      factor->size(1) == x.size(2) && factor->scalar_type() == x.scalar_type()),
              "quantized_rms_norm: the factor must be [b, c] of the type of x");
  return AsRows(CallQuantizing<&SeparateRmsNorm, kQuantizedRmsNorm>(x, weight, factor, eps), x);
}

QuantizedRows QuantizedGeluTanh(const at::Tensor& x) {
  return AsRows(CallQuantizing<&SeparateGeluTanh, kQuantizedGeluTanh>(x), x);
}

QuantizedRows QuantizedSwiGlu(const at::Tensor& gate, const at::Tensor& value) {
  TORCH_CHECK(gate.sizes() == value.sizes() && gate.scalar_type() == value.scalar_type(),
              "quantized_swiglu: a gate of ", gate.sizes(), " for ", value.sizes());
  return AsRows(CallQuantizing<&SeparateSwiGlu, kQuantizedSwiGlu>(gate, value), gate);
}

}  // namespace tessera::kernels
