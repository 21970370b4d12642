// What the operators over rows of channels check about their arguments before they use a kernel of
// kernels/cpu/elementwise.h.
#pragma once

#include <ATen/ATen.h>

#include <utility>

namespace tessera::kernels::cpu {

inline constexpr int64_t kCachedElements = 8192;  // in each of three tensors

inline bool IsNarrow(const at::Tensor& x) { return x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16; }

// Returns whether `vector` holds one vector per batch entry of x, of x's dtype, as Rows expects.
inline bool IsModulation(const at::Tensor& vector, const at::Tensor& x) {
  return vector.dim() == 2 && vector.scalar_type() == x.scalar_type() && vector.size(0) == x.size(0) &&
         vector.size(1) == x.size(2);
}

// Returns whether `vector` is one vector [c] for all images, of x's dtype.
inline bool IsChannels(const at::Tensor& vector, const at::Tensor& x) {
  return vector.dim() == 1 && vector.scalar_type() == x.scalar_type() && vector.size(0) == x.size(2);
}

// Returns the two vectors with contiguous channels and with the same image stride, copying them if necessary.
inline std::pair<at::Tensor, at::Tensor> WithEqualStrides(const at::Tensor& a, const at::Tensor& b) {
  if (a.stride(-1) == 1 && a.strides() == b.strides()) return {a, b};
  return {a.contiguous(), b.contiguous()};
}

}  // namespace tessera::kernels::cpu
