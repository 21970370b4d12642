// What every kernel of this folder has in common with the code that launches it. No LibTorch here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tessera::kernels::cuda {

enum class Number { kBf16, kFloat, kDouble };

// Rows of `channels` numbers each, of `images` · `tokens`; the strides are counted in numbers, and the channels of a
// row lie side by side.
struct ConstRows {
  const void* data = nullptr;
  int64_t image_stride = 0, token_stride = 0;
};

// One such row for each image, or one for all where the stride is 0.
struct PerImage {
  const void* data = nullptr;
  int64_t image_stride = 0;
};

// Planes of `plane` numbers each, of `images` · `channels`, the numbers of a plane side by side.
struct ConstPlanes {
  const void* data = nullptr;
  int64_t images = 0, channels = 0, plane = 0;
  int64_t image_stride = 0, channel_stride = 0;
};

// The same images with their channels last: `pixels` of an image, the channels of each side by side.
struct ConstPixels {
  const void* data = nullptr;
  int64_t images = 0, pixels = 0, channels = 0;
  int64_t image_stride = 0, pixel_stride = 0;
};

// A grid of one or two dimensions, of blocks of whole warps.
struct LaunchShape {
  unsigned blocks = 1, blocks_y = 1;
  unsigned threads = 32;
  size_t shared_bytes = 0;
};

}  // namespace tessera::kernels::cuda
