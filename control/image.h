// Image holds a picture's pixels.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::control {

// `rgb` holds `height` rows of `width` pixels of three bytes, without gaps.
struct Image {
  int width = 0;
  int height = 0;
  std::vector<uint8_t> rgb;
};

}  // namespace tessera::control
