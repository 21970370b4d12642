// Operators of the transformers. Each is registered with PyTorch's dispatcher as tessera::<name> and has a plain
// reference composition (also its gradient; see gradients.h), a fast CPU version and, in the CUDA plug-in, a CUDA
// version. The functions here call the dispatcher; model code reaches operators only through them.
//
// Shapes: b batch, n tokens, t key tokens, h heads, d head_dim, c channels. All tensors of a call share one dtype
// (fp64, fp32 or bf16) unless a comment states otherwise; statistics and sums are accumulated in max(fp32, dtype).
//
// On the CPU, the part of a result that belongs to one image is a function of that image's part of the inputs, bit for
// bit. It does not depend on the other images of the batch or on the number of threads. kernels/batch_contract_test.cc
// tests this for every operator.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>
#include <vector>

#include "kernels/reference/head_tensors.h"
#include "kernels/reference/quant_weight.h"

namespace tessera::kernels {

// softmax(q kᵀ · scale + key_bias) v.  q [b, n, h, d]; k, v [b, t, h, d]; key_bias [b, t] or none, added to every row
// of scores. Returns [b, n, h, d]. The inputs may be strided views whose last dimension is contiguous.
at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& key_bias, double scale);

// Attention without a key bias that also returns the log-sum-exp of each row's scores, from which MergeAttention
// combines results over different keys. Returns [b, n, h, d] and [b, n, h], the latter in max(fp32, dtype).
std::tuple<at::Tensor, at::Tensor> AttentionWithLse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    double scale);

// Combines two results of AttentionWithLse over different keys into the result over both sets of keys.
std::tuple<at::Tensor, at::Tensor> MergeAttention(const at::Tensor& read, const at::Tensor& lse,
                                                  const at::Tensor& other_read, const at::Tensor& other_lse);

// LayerNorm over the last dimension without affine parameters, then y * (1 + scale) + shift.
// x [b, n, c]; shift, scale [b, c].
at::Tensor LayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps);

// LayerNorm over the last dimension, times weight, plus shift.  x [b, n, c]; weight [c]; shift [b, c].
at::Tensor LayerNormShift(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& shift, double eps);

// x + gate * y.  x, y [b, n, c]; gate [b, c].
at::Tensor GatedResidual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y);

// The operations between two products of a block, in one pass. Returns the sum x + gate * y (x + y without a gate), and
// LayerNormModulate of the rounded sum.  x, y [b, n, c]; gate, shift, scale [b, c].
std::tuple<at::Tensor, at::Tensor> GatedResidualNormModulate(const at::Tensor& x, const std::optional<at::Tensor>& gate,
                                                             const at::Tensor& y, const at::Tensor& shift,
                                                             const at::Tensor& scale, double eps);

// The same operator with a norm that does not depend on the image: x + y, and its LayerNorm with weight and bias [c].
std::tuple<at::Tensor, at::Tensor> ResidualNorm(const at::Tensor& x, const at::Tensor& y, const at::Tensor& weight,
                                                const at::Tensor& bias, double eps);

// GELU, tanh approximation, of x [..., c].
at::Tensor GeluTanh(const at::Tensor& x);

// GeluTanh(x) times gate, both [..., c] (GEGLU, Shazeer 2020). x and gate may be the halves of each row of one product.
at::Tensor GegluTanh(const at::Tensor& x, const at::Tensor& gate);

// Silu(gate) times value, both [..., c] (SwiGLU, Shazeer 2020). They may be the halves of each row of one product.
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& value);

// These return x / (1 + e^-x), GELU with the error function, 1 / (1 + e^-x), cosine and sine of each element.
at::Tensor Silu(const at::Tensor& x);
at::Tensor Gelu(const at::Tensor& x);
at::Tensor Sigmoid(const at::Tensor& x);
at::Tensor Cos(const at::Tensor& x);
at::Tensor Sin(const at::Tensor& x);

// x * factor + offset, followed by SiLU if `silu` is set.  x [b, c, h, w]; factor, offset [b, c] in max(fp32, dtype of
// x), which is also the dtype of the arithmetic.
at::Tensor ChannelAffine(const at::Tensor& x, const at::Tensor& factor, const at::Tensor& offset, bool silu);

// The mean of each group of channels of x [b, c, h, w] and the sum of squared differences from it, both [b, groups] in
// fp64. Has no gradient.
std::tuple<at::Tensor, at::Tensor> GroupMoments(const at::Tensor& x, int64_t groups);

// Convolution of x [b, c, h, w] with weight [out, c, kernel, kernel] and bias [out]. `padding` gives the rows of zeros
// above and below and the columns of zeros left and right, in this order.
at::Tensor Conv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t stride,
                  at::IntArrayRef padding);

// Enlarges x to twice its height and width by nearest neighbour, convolves it with a 3 × 3 kernel and a border of
// zeros, and returns rows [first, first + count) of the result.  x [b, c, h, w] → [b, out, count, 2 w]; weight [out, c,
// 3, 3]; bias [out].
at::Tensor UpsampledConv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t first,
                           int64_t count);

// x * rsqrt(mean(x²) + eps) * weight over the last dimension (RMSNorm).  x [..., c]; weight [c].
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// Turns the product of a projection into the inputs of attention in one pass: normalises and rotates queries and keys,
// then writes all parts to `out`. `packed` [b, n, parts·h·d] holds the parts that are defined in `out`, in its order.
// Results are rounded once.
void QkvNormRope(const at::Tensor& packed, const HeadNorm& query_norm, const HeadNorm& key_norm,
                 const RotaryTables& rotary, const HeadsOut& out);

// QkvNormRope of queries or keys alone: packed [b, n, h·d] → [b, n, h, d].
at::Tensor HeadsNormRope(const at::Tensor& packed, int64_t head_dim, const HeadNorm& norm, const RotaryTables& rotary);

// x Wᵀ + bias.  x [..., in]; weight [out, in], plain or from PackWeight; bias [out] or none. Returns [..., out].
at::Tensor LinearProduct(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);

// GeluTanh(LinearProduct(x, weight, bias)), without a second copy of the activations.
at::Tensor LinearGeluTanh(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);

// Returns a quantized weight [out, in] in `dtype`, rounded once from the fp32 values that its form defines; in fp64
// exactly these. Has no gradient.
at::Tensor WidenWeight(const QuantWeight& weight, at::ScalarType dtype);

// x Wᵀ + bias with a quantized weight: LinearProduct(x, WidenWeight(weight, dtype of x), bias), on the CPU bit for bit.
// W exists only in parts during the product. The gradient goes to x alone and widens the weight again; weight and bias
// are frozen.  x [..., in]; bias [out] or none. Returns [..., out].
at::Tensor QuantProduct(const at::Tensor& x, const QuantWeight& weight, const std::optional<at::Tensor>& bias);

// Quantizes the input of a product row by row to e4m3: x ≈ code · scale of the row, scale = (largest magnitude of the
// row) / 448. kernels/quantized/quant_rows.h defines the codes, which have the same bits on every device. A row depends
// on itself alone; one that holds an infinity or NaN gets the scale NaN.  x [..., in] of any floating-point type.
// Returns codes [..., in] in uint8 and scales [...] in fp32. Has no gradient.
std::tuple<at::Tensor, at::Tensor> QuantizeActivations(const at::Tensor& x);

// x Wᵀ + bias of an input from QuantizeActivations and a weight in e4m3 (QuantType::kF8E4M3): the products of codes are
// added up in fp32, the sum is multiplied by the scale of the input's row and by that of the weight's, the bias is
// added, and the result is rounded once to `dtype`.  codes [..., in]; row_scales [...]; bias [out] or none. Returns
// [..., out]. Has no gradient.
at::Tensor Fp8Product(const at::Tensor& codes, const at::Tensor& row_scales, const QuantWeight& weight,
                      const std::optional<at::Tensor>& bias, at::ScalarType dtype);

// Returns one or two weighted sums of the same inputs: sum s is Σᵢ weights[s · inputs + i] · inputs[i]. All inputs and
// results have one shape and one dtype, fp32 or fp64. An input with weight 0 is not read for that sum. Each product and
// each sum is rounded separately, in the order of the inputs. `state`, [2] int64 or none, describes the first sum:
// state[0] becomes 0 if one of its elements is not finite, and its digest (kernels/reference/digest.h) is added to
// state[1]. The words of the digest are the elements' bits, sign-extended.
std::vector<at::Tensor> WeightedSums(at::TensorList inputs, at::ArrayRef<double> weights,
                                     const std::optional<at::Tensor>& state);

// Returns the weight [out, in] of a product in the order in which the device multiplies, in the same number of bytes,
// or the weight itself if reordering has no benefit. For inference, once per weight; the caller then drops the
// original. The result is opaque: only LinearProduct and LinearGeluTanh accept it.
at::Tensor PackWeight(const at::Tensor& weight);

}  // namespace tessera::kernels
