// Pictures for tests, which a script of a few lines can also make for another implementation.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/files/crc32c.h"
#include "control/pictures/picture_frames.h"

namespace tessera::control {

// Noise: the upper 8 bits of the linear congruential generator of Numerical Recipes, from the seed 12345.
inline Frames NoiseFrame(int width, int height, int channels) {
  Frames frame{.width = width, .height = height, .channels = channels, .bytes = {}};
  frame.bytes.resize(frame.row_bytes() * frame.rows());
  uint32_t state = 12345;
  for (uint8_t& value : frame.bytes) value = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  return frame;
}

inline Frames FlatFrame(int width, int height, int channels, uint8_t value) {
  Frames frame{.width = width, .height = height, .channels = channels, .bytes = {}};
  frame.bytes.assign(frame.row_bytes() * frame.rows(), value);
  return frame;
}

inline uint32_t ChecksumOf(const Frames& frame) {
  return base::Crc32c({reinterpret_cast<const char*>(frame.bytes.data()), frame.bytes.size()});
}

}  // namespace tessera::control
