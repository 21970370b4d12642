// Plain, differentiable definitions of the operators in kernels/ops.h, composed of ATen operators. They define the
// gradients, run on devices that have no version of an operator, and are what tests compare the fast versions with.
// Shapes are those of kernels/ops.h.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>
#include <vector>

#include "kernels/reference/head_tensors.h"
#include "kernels/reference/quant_weight.h"

namespace tessera::kernels::reference {

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& key_bias, double scale);
std::tuple<at::Tensor, at::Tensor> AttentionWithLse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    double scale);
at::Tensor LayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps);
at::Tensor LayerNormShift(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& shift, double eps);
at::Tensor GatedResidual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y);
std::tuple<at::Tensor, at::Tensor> GatedResidualNormModulate(const at::Tensor& x, const std::optional<at::Tensor>& gate,
                                                             const at::Tensor& y,
                                                             const std::optional<at::Tensor>& weight,
                                                             const std::optional<at::Tensor>& bias,
                                                             const std::optional<at::Tensor>& shift,
                                                             const std::optional<at::Tensor>& scale, double eps);
void QkvNormRope(const at::Tensor& packed, const HeadNorm& query_norm, const HeadNorm& key_norm,
                 const RotaryTables& rotary, const HeadsOut& out);
at::Tensor GeluTanh(const at::Tensor& x);
at::Tensor GegluTanh(const at::Tensor& x, const at::Tensor& gate);
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& value);
at::Tensor Silu(const at::Tensor& x);
at::Tensor Gelu(const at::Tensor& x);
at::Tensor Sigmoid(const at::Tensor& x);
at::Tensor Cos(const at::Tensor& x);
at::Tensor Sin(const at::Tensor& x);
at::Tensor ChannelAffine(const at::Tensor& x, const at::Tensor& factor, const at::Tensor& offset, bool silu);
std::tuple<at::Tensor, at::Tensor> GroupMoments(const at::Tensor& x, int64_t groups);
at::Tensor Conv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t stride,
                  at::IntArrayRef padding);
at::Tensor UpsampledConv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t first,
                           int64_t count);
std::tuple<at::Tensor, at::Tensor> MergeAttention(const at::Tensor& read, const at::Tensor& lse,
                                                  const at::Tensor& other_read, const at::Tensor& other_lse);
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);
// `weight` is plain.
at::Tensor LinearProduct(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);
at::Tensor LinearGeluTanh(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);
at::Tensor WidenWeight(const QuantWeight& weight, at::ScalarType dtype);
at::Tensor QuantProduct(const at::Tensor& x, const QuantWeight& weight, const std::optional<at::Tensor>& bias);
std::tuple<at::Tensor, at::Tensor> QuantizeActivations(const at::Tensor& x);
at::Tensor Fp8Product(const at::Tensor& codes, const at::Tensor& row_scales, const QuantWeight& weight,
                      const std::optional<at::Tensor>& bias, at::ScalarType dtype);
std::vector<at::Tensor> WeightedSums(at::TensorList inputs, at::ArrayRef<double> weights,
                                     const std::optional<at::Tensor>& state);

}  // namespace tessera::kernels::reference
