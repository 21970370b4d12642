// Types shared by every kernel of this folder and the code that launches it. The header does not use LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tessera::kernels::cuda {

enum class Number { kBf16, kFloat, kDouble };

// Rows of `channels` numbers, `images` · `tokens` of them. Strides are in numbers; the channels of a row are adjacent.
struct ConstRows {
  const void* data = nullptr;
  int64_t image_stride = 0, token_stride = 0;
};

// One such row per image, or one for all images if the stride is 0.
struct PerImage {
  const void* data = nullptr;
  int64_t image_stride = 0;
};

// Planes of `plane` adjacent numbers, `images` · `channels` of them.
struct ConstPlanes {
  const void* data = nullptr;
  int64_t images = 0, channels = 0, plane = 0;
  int64_t image_stride = 0, channel_stride = 0;
};

// Images with their channels last: `pixels` per image, each with adjacent channels.
struct ConstPixels {
  const void* data = nullptr;
  int64_t images = 0, pixels = 0, channels = 0;
  int64_t image_stride = 0, pixel_stride = 0;
};

// A grid of one or two dimensions. Blocks consist of whole warps.
struct LaunchShape {
  unsigned blocks = 1, blocks_y = 1;
  unsigned threads = 32;
  size_t shared_bytes = 0;
};

}  // namespace tessera::kernels::cuda
