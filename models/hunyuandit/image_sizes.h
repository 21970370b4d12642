// Sizes and positions of HunyuanDiT. LibTorch-free.
#pragma once

#include <cstdint>

namespace tessera::models {

struct HunyuanSize {
  int64_t height = 0, width = 0;
};

// The standard shape nearest to the requested one: first by the ratio width / height, then by area.
HunyuanSize HunyuanStandardSize(int64_t height, int64_t width);

// Where a grid of tokens lies in the square grid [0, base)² that the positions were trained on: fitted into it keeping
// its ratio, and centred. Rounding is to even, as the reference's.
struct HunyuanRopeRegion {
  int64_t top = 0, left = 0, bottom = 0, right = 0;
};
HunyuanRopeRegion HunyuanRopeRegionFor(int64_t grid_height, int64_t grid_width, int64_t base);

}  // namespace tessera::models
