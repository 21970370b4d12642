// Operators of the transformers. Each is registered with PyTorch's dispatcher as tessera::<name> and has a plain
// reference composition (also its gradient), a fast CPU version and, in the CUDA plug-in, a CUDA version.
// The functions here call the dispatcher; they are the only way model code reaches an operator.
//
// Shapes: b batch, n tokens, t key tokens, h heads, d head_dim, c channels. All tensors of a call share one dtype
// (fp64, fp32 or bf16) unless said otherwise; statistics and sums are kept in max(fp32, dtype).
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>

namespace tessera {

// softmax(q kᵀ · scale + key_bias) v.  q [b, n, h, d]; k, v [b, t, h, d]; key_bias [b, t] or none, added to every row
// of scores. Returns [b, n, h, d]. The inputs may be strided views whose last dimension is contiguous.
at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& key_bias, double scale);

// Attention without a key bias, and the logarithm of each row's sum of exponentials, by which results over different
// keys are merged. Returns [b, n, h, d] and [b, n, h], the latter in max(fp32, dtype).
std::tuple<at::Tensor, at::Tensor> AttentionWithLse(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    double scale);

// LayerNorm over the last dimension without affine parameters, then y * (1 + scale) + shift.
// x [b, n, c]; shift, scale [b, c].
at::Tensor LayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps);

// x + gate * y.  x, y [b, n, c]; gate [b, c].
at::Tensor GatedResidual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y);

// GELU, tanh approximation, of x [..., c].
at::Tensor GeluTanh(const at::Tensor& x);

// x * rsqrt(mean(x²) + eps) * weight over the last dimension (RMSNorm).  x [..., c]; weight [c].
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// x Wᵀ + bias.  x [..., in]; weight [out, in], as it is or from PackWeight; bias [out] or none. Returns [..., out].
at::Tensor LinearProduct(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);

// GeluTanh(LinearProduct(x, weight, bias)), without a second copy of the activations.
at::Tensor LinearGeluTanh(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);

// The weight [out, in] of a product in the order the device multiplies in, of the same size in bytes; the weight itself
// where that brings nothing. For inference, once per weight: the caller then drops the original. The result is opaque:
// only LinearProduct and LinearGeluTanh accept it.
at::Tensor PackWeight(const at::Tensor& weight);

}  // namespace tessera
