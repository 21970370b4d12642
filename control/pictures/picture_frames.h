// Frames holds the pixels of a decoded picture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::control {

// `bytes` holds `count` frames (layers) of one size, one after another. Each has `height` rows of `width` pixels of
// `channels` bytes, without gaps: 1 is gray, 3 are RGB, 4 RGB and alpha.
struct Frames {
  int width = 0;
  int height = 0;
  int count = 1;
  int channels = 3;
  std::vector<uint8_t> bytes;

  size_t row_bytes() const { return static_cast<size_t>(width) * static_cast<size_t>(channels); }
  size_t rows() const { return static_cast<size_t>(height) * static_cast<size_t>(count); }  // of all frames
  bool has_shape_of(const Frames& other) const {
    return width == other.width && height == other.height && count == other.count && channels == other.channels;
  }
};

}  // namespace tessera::control
