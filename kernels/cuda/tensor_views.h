// Converts LibTorch's tensors to the arguments of this folder's kernels. Functions return nothing for a tensor that the
// kernels do not support.
#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

std::optional<Number> ToNumber(at::ScalarType type);

// The images, tokens and channels of [..., channels], and their place in memory.
struct RowsView {
  int64_t images = 0, tokens = 0, channels = 0;
  ConstRows rows;
};
std::optional<RowsView> ViewRows(const at::Tensor& x);

// A tensor [images, channels] of x's dtype on x's device.
std::optional<PerImage> ViewPerImage(const at::Tensor& vectors, const at::Tensor& x, int64_t images, int64_t channels);
// A tensor [channels] that is the same for every image.
std::optional<PerImage> ViewForAll(const at::Tensor& vector, const at::Tensor& x, int64_t channels);

}  // namespace tessera::kernels::cuda
