// The matrix product with a frozen weight that is held in eight bits.
#pragma once

#include <ATen/ATen.h>

#include <optional>

namespace tessera::models {

// x Wᵀ + bias, with W of FromEightBits in the dtype of x, there for the time of a product alone: the backward pass
// makes it again, and keeps nothing but the eight bits. x [..., in], values [out, in], scales [out, 1], bias [out] or
// none. Gradients go to x; bias is frozen like the weight.
at::Tensor EightBitProduct(const at::Tensor& x, const at::Tensor& values, const at::Tensor& scales,
                           const std::optional<at::Tensor>& bias);

}  // namespace tessera::models
