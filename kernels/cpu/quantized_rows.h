// The operators of kernels/quantized_ops.h on CPU tensors, with the arguments of their schemas. Each thread computes a
// few rows, which stay in its cache, and quantizes them. What kernels/cpu/operators.h says about types and images holds
// here too.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>

#include "kernels/cpu/isa.h"

namespace tessera::kernels::cpu {

// Either `scale` or `weight` is given.
std::tuple<at::Tensor, at::Tensor> QuantizedLayerNorm(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                                                      const at::Tensor& shift, const std::optional<at::Tensor>& scale,
                                                      double eps, Isa isa);
// Either `shift` and `scale` or `weight` and `bias` are given.
std::tuple<at::Tensor, at::Tensor, at::Tensor> QuantizedResidualNorm(
    const at::Tensor& x, const std::optional<at::Tensor>& gate, const at::Tensor& y,
    const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& shift, const std::optional<at::Tensor>& scale, double eps, Isa isa);
std::tuple<at::Tensor, at::Tensor> QuantizedRmsNorm(const at::Tensor& x, const at::Tensor& weight,
                                                    const std::optional<at::Tensor>& factor, double eps, Isa isa);
std::tuple<at::Tensor, at::Tensor> QuantizedGeluTanh(const at::Tensor& x, Isa isa);
std::tuple<at::Tensor, at::Tensor> QuantizedSwiGlu(const at::Tensor& gate, const at::Tensor& value, Isa isa);

}  // namespace tessera::kernels::cpu
