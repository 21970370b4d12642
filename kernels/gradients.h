// Differentiable versions of operators of kernels/ops.h. If the tensors are in fp32 or bf16 on the CPU, the forward
// pass runs the fast version and the backward pass a dedicated kernel, for which only the operator's inputs and results
// are saved (for attention also the log-sum-exp). Otherwise the reference composition runs; but products and attention
// in fp64 on the CPU have the bits of the forward pass without gradients, so that blocks which are computed again give
// the same gradients on every processor.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>

#include "kernels/reference/quant_weight.h"

namespace tessera::kernels::gradients {

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& key_bias, double scale);
at::Tensor LayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps);
at::Tensor GatedResidual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y);
std::tuple<at::Tensor, at::Tensor> GatedResidualNormModulate(const at::Tensor& x, const std::optional<at::Tensor>& gate,
                                                             const at::Tensor& y,
                                                             const std::optional<at::Tensor>& weight,
                                                             const std::optional<at::Tensor>& bias,
                                                             const std::optional<at::Tensor>& shift,
                                                             const std::optional<at::Tensor>& scale, double eps);
at::Tensor GeluTanh(const at::Tensor& x);
at::Tensor LinearProduct(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);
at::Tensor LinearGeluTanh(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);
// On every device and in every dtype; the gradient goes to x alone.
at::Tensor QuantProduct(const at::Tensor& x, const QuantWeight& weight, const std::optional<at::Tensor>& bias);

}  // namespace tessera::kernels::gradients
