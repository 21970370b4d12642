// The operators of kernels/ops.h on CPU tensors. fp64 and unusual layouts take the reference composition; fp32 and
// bf16 take the version for `isa`.
#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "kernels/cpu/isa.h"

namespace tessera::cpu {

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& key_bias, double scale, Isa isa);
at::Tensor LayerNormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps,
                             Isa isa);
at::Tensor GatedResidual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y, Isa isa);
at::Tensor GeluTanh(const at::Tensor& x, Isa isa);
at::Tensor& GeluTanhInPlace(at::Tensor& x, Isa isa);
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps, Isa isa);

// `weight` is plain, [out, in], or packed for the same `isa`, [1, out, in].
at::Tensor LinearProduct(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, Isa isa);
at::Tensor PackWeight(const at::Tensor& weight, Isa isa);
// The plain weight of a packed one; a plain one itself.
at::Tensor UnpackWeight(const at::Tensor& weight, Isa isa);

}  // namespace tessera::cpu
