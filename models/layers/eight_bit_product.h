// Computes the matrix product with a frozen weight that is held in eight bits.
#pragma once

#include <ATen/ATen.h>

#include <optional>

namespace tessera::models {

// Returns x Wᵀ + bias, where W is FromEightBits in the dtype of x. W exists only during the product: the backward pass
// computes it again and keeps only the eight-bit values. x [..., in], values [out, in], scales [out, 1], bias [out] or
// none. Gradients go to x; the bias is frozen like the weight.
at::Tensor EightBitProduct(const at::Tensor& x, const at::Tensor& values, const at::Tensor& scales,
                           const std::optional<at::Tensor>& bias);

}  // namespace tessera::models
