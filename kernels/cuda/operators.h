// The operators of kernels/ops.h and kernels/quantized_ops.h on CUDA tensors, with the arguments of their schemas.
//
// An operator that makes one pass over memory is one kernel of this folder. Arguments that the kernel does not support
// (other types, channels that are not adjacent, rows that are too long) use the reference composition. Products and
// attention use the libraries of LibTorch.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>

#include "kernels/reference/quant_weight.h"

namespace tessera::kernels::cuda {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor LayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps);
at::Tensor LayerNormShift(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& shift, double eps);
at::Tensor GatedResidual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y);
std::tuple<at::Tensor, at::Tensor> GatedResidualNormModulate(const at::Tensor& x, const OptionalTensor& gate,
                                                             const at::Tensor& y, const OptionalTensor& weight,
                                                             const OptionalTensor& bias, const OptionalTensor& shift,
                                                             const OptionalTensor& scale, double eps);
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);
void QkvNormRope(const at::Tensor& packed, const OptionalTensor& query_weight, const OptionalTensor& query_bias,
                 double query_eps, const OptionalTensor& key_weight, const OptionalTensor& key_bias, double key_eps,
                 const OptionalTensor& cos, const OptionalTensor& sin, const OptionalTensor& q, const OptionalTensor& k,
                 const OptionalTensor& v);
std::tuple<at::Tensor, at::Tensor> MergeAttention(const at::Tensor& read, const at::Tensor& lse,
                                                  const at::Tensor& other_read, const at::Tensor& other_lse);
at::Tensor GeluTanh(const at::Tensor& x);
at::Tensor GegluTanh(const at::Tensor& x, const at::Tensor& gate);
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& value);
at::Tensor Gelu(const at::Tensor& x);
at::Tensor Silu(const at::Tensor& x);
at::Tensor Sigmoid(const at::Tensor& x);
at::Tensor ChannelAffine(const at::Tensor& x, const at::Tensor& factor, const at::Tensor& offset, bool silu);
std::tuple<at::Tensor, at::Tensor> GroupMoments(const at::Tensor& x, int64_t groups);
std::vector<at::Tensor> WeightedSums(at::TensorList inputs, at::ArrayRef<double> weights, const OptionalTensor& state);

std::tuple<at::Tensor, at::Tensor> QuantizedLayerNorm(const at::Tensor& x, const OptionalTensor& weight,
                                                      const at::Tensor& shift, const OptionalTensor& scale, double eps);
std::tuple<at::Tensor, at::Tensor, at::Tensor> QuantizedResidualNorm(const at::Tensor& x, const OptionalTensor& gate,
                                                                     const at::Tensor& y, const OptionalTensor& weight,
                                                                     const OptionalTensor& bias,
                                                                     const OptionalTensor& shift,
                                                                     const OptionalTensor& scale, double eps);
std::tuple<at::Tensor, at::Tensor> QuantizedRmsNorm(const at::Tensor& x, const at::Tensor& weight,
                                                    const OptionalTensor& factor, double eps);
std::tuple<at::Tensor, at::Tensor> QuantizedGeluTanh(const at::Tensor& x);
std::tuple<at::Tensor, at::Tensor> QuantizedSwiGlu(const at::Tensor& gate, const at::Tensor& value);

at::Tensor WidenWeight(const at::Tensor& values, const OptionalTensor& scales, const OptionalTensor& table,
                       int64_t type, int64_t in, int64_t scale_block, at::ScalarType dtype);
at::Tensor QuantProduct(const at::Tensor& x, const at::Tensor& values, const OptionalTensor& scales,
                        const OptionalTensor& table, int64_t type, int64_t in, int64_t scale_block,
                        const OptionalTensor& bias);
// QuantProduct in which the widened weight exists in parts of at most so many bytes, or of one row.
at::Tensor QuantProductInParts(const at::Tensor& x, const QuantWeight& weight, const OptionalTensor& bias,
                               int64_t most_part_bytes);
std::tuple<at::Tensor, at::Tensor> QuantizeActivations(const at::Tensor& x);
// Multiplies codes with codes where the library and the GPU (architecture 8.9 and newer) have such a product, in bf16
// with rows of whole 16 numbers; else WidenedFp8Product.
at::Tensor Fp8Product(const at::Tensor& codes, const at::Tensor& row_scales, const at::Tensor& values,
                      const at::Tensor& scales, const OptionalTensor& bias, at::ScalarType dtype);
// Fp8Product of codes that are widened to fp32.
at::Tensor WidenedFp8Product(const at::Tensor& codes, const at::Tensor& row_scales, const at::Tensor& values,
                             const at::Tensor& scales, const OptionalTensor& bias, at::ScalarType dtype);

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const OptionalTensor& key_bias,
                     double scale);
std::tuple<at::Tensor, at::Tensor> AttentionWithLse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    double scale);
at::Tensor LinearGeluTanh(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias);

}  // namespace tessera::kernels::cuda
