// Operators of the transformers. Each is registered with PyTorch's dispatcher as tessera::<name> and has a plain
// reference composition (also its gradient; see gradients.h), a fast CPU version and, in the CUDA plug-in, a CUDA one.
// The functions here call the dispatcher; they are the only way model code reaches an operator.
//
// Shapes: b batch, n tokens, t key tokens, h heads, d head_dim, c channels. All tensors of a call share one dtype
// (fp64, fp32 or bf16) unless said otherwise; statistics and sums are kept in max(fp32, dtype).
//
// On the CPU the part of a result that belongs to one image is a function of that image's part of the inputs alone, bit
// for bit, whatever shares the batch and on whatever number of threads. kernels/batch_contract_test.cc holds every
// operator to it.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>
#include <vector>

namespace tessera::kernels {

// softmax(q kᵀ · scale + key_bias) v.  q [b, n, h, d]; k, v [b, t, h, d]; key_bias [b, t] or none, added to every row
// of scores. Returns [b, n, h, d]. The inputs may be strided views whose last dimension is contiguous.
at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& key_bias, double scale);

// Attention without a key bias, and the logarithm of each row's sum of exponentials, by which results over different
// keys are merged. Returns [b, n, h, d] and [b, n, h], the latter in max(fp32, dtype).
std::tuple<at::Tensor, at::Tensor> AttentionWithLse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    double scale);

// Two results of AttentionWithLse over different keys as the one over both.
std::tuple<at::Tensor, at::Tensor> MergeAttention(const at::Tensor& read, const at::Tensor& lse,
                                                  const at::Tensor& other_read, const at::Tensor& other_lse);

// LayerNorm over the last dimension without affine parameters, then y * (1 + scale) + shift.
// x [b, n, c]; shift, scale [b, c].
at::Tensor LayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps);

// LayerNorm over the last dimension times weight, and shift added to it.  x [b, n, c]; weight [c]; shift [b, c].
at::Tensor LayerNormShift(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& shift, double eps);

// x + gate * y.  x, y [b, n, c]; gate [b, c].
at::Tensor GatedResidual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y);

// What lies between two products of a block, in one pass: the sum x + gate * y (x + y without a gate), and
// LayerNormModulate of the sum as it is returned.  x, y [b, n, c]; gate, shift, scale [b, c].
std::tuple<at::Tensor, at::Tensor> GatedResidualNormModulate(const at::Tensor& x, const std::optional<at::Tensor>& gate,
                                                             const at::Tensor& y, const at::Tensor& shift,
                                                             const at::Tensor& scale, double eps);

// The same operator for a norm that does not depend on the image: x + y, and LayerNorm of it with weight and bias [c].
std::tuple<at::Tensor, at::Tensor> ResidualNorm(const at::Tensor& x, const at::Tensor& y, const at::Tensor& weight,
                                                const at::Tensor& bias, double eps);

// GELU, tanh approximation, of x [..., c].
at::Tensor GeluTanh(const at::Tensor& x);

// GeluTanh(x) times gate, both [..., c] (GEGLU, Shazeer 2020). The rows may be halves of one product's.
at::Tensor GegluTanh(const at::Tensor& x, const at::Tensor& gate);

// x / (1 + e^-x), GELU with the error function, 1 / (1 + e^-x), cosine and sine of each element.
at::Tensor Silu(const at::Tensor& x);
at::Tensor Gelu(const at::Tensor& x);
at::Tensor Sigmoid(const at::Tensor& x);
at::Tensor Cos(const at::Tensor& x);
at::Tensor Sin(const at::Tensor& x);

// x * factor + offset, and SiLU of it where `silu` says so.  x [b, c, h, w]; factor, offset [b, c] in
// max(fp32, dtype of x), where the arithmetic is done too.
at::Tensor ChannelAffine(const at::Tensor& x, const at::Tensor& factor, const at::Tensor& offset, bool silu);

// Mean of each group of channels of x [b, c, h, w], and the sum of the squared differences from it, both [b, groups] in
// fp64. Has no gradient.
std::tuple<at::Tensor, at::Tensor> GroupMoments(const at::Tensor& x, int64_t groups);

// Convolution of x [b, c, h, w] with weight [out, c, kernel, kernel] and bias [out]; `padding` are the rows of zeros
// above and below and the columns left and right.
at::Tensor Conv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t stride,
                  at::IntArrayRef padding);

// Rows [first, first + count) of the 3 × 3 convolution, with zeros all round, of x enlarged to twice its height and
// width by nearest neighbour.  x [b, c, h, w] → [b, out, count, 2 w]; weight [out, c, 3, 3]; bias [out].
at::Tensor UpsampledConv2d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t first,
                           int64_t count);

// x * rsqrt(mean(x²) + eps) * weight over the last dimension (RMSNorm).  x [..., c]; weight [c].
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// How a head's queries or keys are normalised over its channels: RMSNorm by a weight [d], LayerNorm where there is a
// bias [d] too; not at all where both are undefined.
struct HeadNorm {
  at::Tensor weight, bias;
  double eps = 0;
};

// Angles of rotary positions (Su et al., 2021) as tables [n, d/2] in max(fp32, dtype): the channels 2k and 2k + 1 of a
// token turn by its angle k. Undefined: nothing turns.
struct RotaryTables {
  at::Tensor cos, sin;
};

// Where queries, keys and values go, each [b, n, g, h/g, d]: the heads in g groups, of any strides but the last, which
// is 1. Undefined: that part is not there.
struct HeadsOut {
  at::Tensor q, k, v;
};

// From the product of a projection to what attention reads, in one pass: queries and keys are normalised and turned,
// then all are written to their places. `packed` [b, n, parts·h·d] holds those parts that `out` has, in its order.
// Rounded once.
void QkvNormRope(const at::Tensor& packed, const HeadNorm& query_norm, const HeadNorm& key_norm,
                 const RotaryTables& rotary, const HeadsOut& out);

// QkvNormRope of queries alone, or of keys: packed [b, n, h·d] → [b, n, h, d].
at::Tensor HeadsNormRope(const at::Tensor& packed, int64_t head_dim, const HeadNorm& norm, const RotaryTables& rotary);

// x Wᵀ + bias.  x [..., in]; weight [out, in], as it is or from PackWeight; bias [out] or none. Returns [..., out].
at::Tensor LinearProduct(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);

// GeluTanh(LinearProduct(x, weight, bias)), without a second copy of the activations.
at::Tensor LinearGeluTanh(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);

// Weighted sums of the same inputs, one or two of them: the sum with number s is Σᵢ weights[s · inputs + i] ·
// inputs[i]. The inputs are of one shape, in fp32 or fp64; the results are of it too. An input is not read for a sum in
// which it weighs 0. Products and sums are rounded each by itself, in the order of the inputs. `state`, [2] int64 or
// none: of the first sum, state[0] becomes 0 where a number is not finite, and its digest (kernels/digest.h) is added
// to state[1]; the words are the bits of the numbers, widened with their sign.
std::vector<at::Tensor> WeightedSums(at::TensorList inputs, at::ArrayRef<double> weights,
                                     const std::optional<at::Tensor>& state);

// The weight [out, in] of a product in the order the device multiplies in, of the same size in bytes; the weight itself
// where that brings nothing. For inference, once per weight: the caller then drops the original. The result is opaque:
// only LinearProduct and LinearGeluTanh accept it.
at::Tensor PackWeight(const at::Tensor& weight);

}  // namespace tessera::kernels
