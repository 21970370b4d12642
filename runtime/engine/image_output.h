// Converts the autoencoder's output to the pixels that a user gets.
#pragma once

#include <ATen/ATen.h>

namespace tessera::runtime {

// image [b, 3, h, w] → [b, 3, height, width]: bilinear resize to cover the size with the aspect ratio kept, then the
// centred crop. Used after resolution binning; returns its argument if it already has the size.
at::Tensor ResizeAndCrop(const at::Tensor& image, int64_t height, int64_t width);

// image [b, 3, h, w], [−1, 1] → [b, h, w, 3] uint8: 255 · clamp(x/2 + 1/2, 0, 1), ties rounded to even.
at::Tensor ToPixels(const at::Tensor& image);

}  // namespace tessera::runtime
