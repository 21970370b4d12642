// From the autoencoder's output to the pixels a user gets.
#pragma once

#include <ATen/ATen.h>

namespace tessera::runtime {

// image [b, 3, h, w] → [b, 3, height, width]: bilinear resize to cover the size, keeping the ratio, then the centred
// crop. Used after resolution binning; returns its argument where the size is right already.
at::Tensor ResizeAndCrop(const at::Tensor& image, int64_t height, int64_t width);

// image [b, 3, h, w], [−1, 1] → [b, h, w, 3] uint8: round half to even of 255 · clamp(x/2 + 1/2, 0, 1).
at::Tensor ToPixels(const at::Tensor& image);

}  // namespace tessera::runtime
