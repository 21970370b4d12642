// LibTorch's tensors as the kernels of this folder take them. Nothing where a kernel does not take such a tensor.
#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

std::optional<Number> ToNumber(at::ScalarType type);

// Images, tokens and channels of [..., channels], and where they lie.
struct RowsView {
  int64_t images = 0, tokens = 0, channels = 0;
  ConstRows rows;
};
std::optional<RowsView> ViewRows(const at::Tensor& x);

// [images, channels] of x's type on x's device.
std::optional<PerImage> ViewPerImage(const at::Tensor& vectors, const at::Tensor& x, int64_t images, int64_t channels);
// [channels], the same for every image.
std::optional<PerImage> ViewForAll(const at::Tensor& vector, const at::Tensor& x, int64_t channels);

}  // namespace tessera::kernels::cuda
