// The operators of kernels/ops.h on CPU tensors. fp32 and bf16 use the version for `isa`; fp64 has a single version,
// except for its products; unusual memory layouts use the reference composition.
//
// The part of every operator's result that belongs to one image depends on that image's part of the inputs alone, bit
// for bit: not on the rest of the batch, nor on the number of threads. Work is split over threads by rows, never inside
// a sum.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>
#include <vector>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/product.h"
#include "kernels/reference/head_tensors.h"
#include "kernels/reference/quant_weight.h"

namespace tessera::kernels::cpu {

// The element type of a tensor in fp32 or bf16, and the vector_stride of Rows for vectors [b, c] or [c].
inline Element ElementOf(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat ? Element::kFloat : Element::kBf16;
}
inline int64_t ImageStride(const at::Tensor& vector) { return vector.dim() == 2 ? vector.stride(0) : 0; }

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& key_bias, double scale, Isa isa);
std::tuple<at::Tensor, at::Tensor> AttentionWithLse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    double scale, Isa isa);
// AttentionWithLse with a key bias, for tensors that kernels/gradients.h accepts.
std::tuple<at::Tensor, at::Tensor> BiasedAttentionWithLse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                          const std::optional<at::Tensor>& key_bias, double scale,
                                                          Isa isa);
// `read` and `other_read` may have any type; both logarithms have the same type, which is also the result's.
std::tuple<at::Tensor, at::Tensor> MergeAttention(const at::Tensor& read, const at::Tensor& lse,
                                                  const at::Tensor& other_read, const at::Tensor& other_lse);
at::Tensor LayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps,
                             Isa isa);
at::Tensor LayerNormShift(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& shift, double eps, Isa isa);
at::Tensor GatedResidual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y, Isa isa);
std::tuple<at::Tensor, at::Tensor> GatedResidualNormModulate(
    const at::Tensor& x, const std::optional<at::Tensor>& gate, const at::Tensor& y,
    const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& shift, const std::optional<at::Tensor>& scale, double eps, Isa isa);
void QkvNormRope(const at::Tensor& packed, const HeadNorm& query_norm, const HeadNorm& key_norm,
                 const RotaryTables& rotary, const HeadsOut& out, Isa isa);
at::Tensor GeluTanh(const at::Tensor& x, Isa isa);
at::Tensor& GeluTanhInPlace(at::Tensor& x, Isa isa);
at::Tensor Silu(const at::Tensor& x, Isa isa);
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& value, Isa isa);
at::Tensor Gelu(const at::Tensor& x);
at::Tensor Sigmoid(const at::Tensor& x);
at::Tensor Cos(const at::Tensor& x);
at::Tensor Sin(const at::Tensor& x);
at::Tensor ChannelAffine(const at::Tensor& x, const at::Tensor& factor, const at::Tensor& offset, bool silu, Isa isa);
std::tuple<at::Tensor, at::Tensor> GroupMoments(const at::Tensor& x, int64_t groups, Isa isa);
at::Tensor Conv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t stride,
                  at::IntArrayRef padding, Isa isa);
at::Tensor UpsampledConv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t first,
                           int64_t count, Isa isa);
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps, Isa isa);
std::vector<at::Tensor> WeightedSums(at::TensorList inputs, at::ArrayRef<double> weights,
                                     const std::optional<at::Tensor>& state);

// `weight` is plain, [out, in], or packed for the same `isa`, [1, out, in].
at::Tensor LinearProduct(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, Isa isa);
at::Tensor PackWeight(const at::Tensor& weight, Isa isa);
// Returns the plain weight of a packed one, and a plain weight unchanged.
at::Tensor UnpackWeight(const at::Tensor& weight, Isa isa);

// `weight` is in main memory. The product is LinearProduct's for WidenWeight in the dtype of x, bit for bit.
at::Tensor WidenWeight(const QuantWeight& weight, at::ScalarType dtype, Isa isa);
at::Tensor QuantProduct(const at::Tensor& x, const QuantWeight& weight, const std::optional<at::Tensor>& bias, Isa isa);

// `weight` is in main memory, in e4m3. A row of codes depends on that row of x alone, and has the same bits for every
// `isa`.
std::tuple<at::Tensor, at::Tensor> QuantizeActivations(const at::Tensor& x, Isa isa);
at::Tensor Fp8Product(const at::Tensor& codes, const at::Tensor& row_scales, const QuantWeight& weight,
                      const std::optional<at::Tensor>& bias, at::ScalarType dtype, Isa isa);

// Gradients in fp32 and bf16. Only kernels/gradients.cc calls them and checks that the tensors fit. Sums over tokens
// have the same order on any number of threads.
//
// Gradients of a norm of x [b, n, c] times (offset + factor) plus a shift, with respect to x, the shift and the factor;
// shift and factor are [b, c] or [c]. `of_sum` is a further gradient of x to be added; undefined means none.
std::tuple<at::Tensor, at::Tensor, at::Tensor> NormModulateBackward(const at::Tensor& of_out, const at::Tensor& of_sum,
                                                                    const at::Tensor& x, const at::Tensor& factor,
                                                                    double offset, double eps, Isa isa);
// Gradients of GatedResidual with respect to the gate and y.
std::tuple<at::Tensor, at::Tensor> GatedResidualBackward(const at::Tensor& of_sum, const at::Tensor& gate,
                                                         const at::Tensor& y, Isa isa);
at::Tensor GeluTanhBackward(const at::Tensor& of_out, const at::Tensor& x, Isa isa);
// Gradients of attention with respect to q, k and v. `read` and `lse` are the result and the log-sum-exp over all keys;
// k and v may be a part of those keys.
std::tuple<at::Tensor, at::Tensor, at::Tensor> AttentionBackward(const at::Tensor& of_read, const at::Tensor& q,
                                                                 const at::Tensor& k, const at::Tensor& v,
                                                                 const std::optional<at::Tensor>& key_bias,
                                                                 const at::Tensor& read, const at::Tensor& lse,
                                                                 double scale, Isa isa);

// Returns the element type of products of this dtype, or nothing if there are none.
std::optional<ProductElement> ProductElementOf(at::ScalarType type);

// Returns x [b, c, h, w] unchanged if the rows of each plane are adjacent, as in a band of rows of a larger image; else
// returns a contiguous copy.
at::Tensor WithRowsInOrder(const at::Tensor& x);

}  // namespace tessera::kernels::cpu
