// Computes sizes and positions of HunyuanDiT. LibTorch-free.
#pragma once

#include <cstdint>

namespace tessera::control {
struct StandardSizes;
}

namespace tessera::models {

control::StandardSizes HunyuanSizes();

// The region of a token grid in the square grid [0, base)² that the positions were trained on: fitted into the square
// with its aspect ratio, and centred. Ties round to even, as in the reference.
struct HunyuanRopeRegion {
  int64_t top = 0, left = 0, bottom = 0, right = 0;
};
HunyuanRopeRegion HunyuanRopeRegionFor(int64_t grid_height, int64_t grid_width, int64_t base);

}  // namespace tessera::models
