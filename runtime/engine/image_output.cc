#include "runtime/engine/image_output.h"

#include <algorithm>

namespace tessera::runtime {

at::Tensor ResizeAndCrop(const at::Tensor& image, int64_t height, int64_t width) {
  const int64_t h = image.size(2), w = image.size(3);
  if (h == height && w == width) return image;
  const double ratio = std::max(static_cast<double>(height) / static_cast<double>(h),
                                static_cast<double>(width) / static_cast<double>(w));
  // Truncated like in the reference, but never below the crop, which rounding of the ratio could cause.
  const int64_t resized_h = std::max(height, static_cast<int64_t>(static_cast<double>(h) * ratio));
  const int64_t resized_w = std::max(width, static_cast<int64_t>(static_cast<double>(w) * ratio));
  const at::Tensor resized = at::upsample_bilinear2d(image, {resized_h, resized_w}, /*align_corners=*/false);
  return resized.narrow(2, (resized_h - height) / 2, height).narrow(3, (resized_w - width) / 2, width);
}

at::Tensor ToPixels(const at::Tensor& image) {
  return (image * 0.5 + 0.5).clamp(0, 1).mul(255).round().to(at::kByte).permute({0, 2, 3, 1}).contiguous();
}

}  // namespace tessera::runtime
