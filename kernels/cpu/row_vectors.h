// What the operators over rows of channels check about their arguments before they use a kernel of
// kernels/cpu/elementwise.h.
#pragma once

#include <ATen/ATen.h>

#include <optional>
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

// The arguments of GatedResidualNormModulate (kernels/cpu/operators.h) as its kernels read them.
struct ResidualNormVectors {
  bool by_image = false;  // the norm's vectors are those of an image: shift and scale
  at::Tensor gates;       // ones without a gate
  std::pair<at::Tensor, at::Tensor> norm;
};

// Returns nothing if the kernels do not support the arguments.
inline std::optional<ResidualNormVectors> ResidualNormVectorsOf(
    const at::Tensor& x, const std::optional<at::Tensor>& gate, const at::Tensor& y,
    const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& shift, const std::optional<at::Tensor>& scale) {
  const bool by_image = scale.has_value();
  if (!IsNarrow(x) || x.dim() != 3 || x.numel() == 0 || !x.sizes().equals(y.sizes()) ||
      y.scalar_type() != x.scalar_type() || (gate.has_value() && !IsModulation(*gate, x)) ||
      !(by_image ? IsModulation(*shift, x) && IsModulation(*scale, x)
                 : IsChannels(*weight, x) && IsChannels(*bias, x))) {
    return std::nullopt;
  }
  return ResidualNormVectors{.by_image = by_image,
                             .gates = !gate.has_value()      ? at::ones({x.size(2)}, x.options())
                                      : gate->stride(1) == 1 ? *gate
                                                             : gate->contiguous(),
                             .norm = by_image ? WithEqualStrides(*shift, *scale) : WithEqualStrides(*bias, *weight)};
}

}  // namespace tessera::kernels::cpu
