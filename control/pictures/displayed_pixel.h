// What a pixel of a picture file looks like when it is displayed: its place, by the camera's orientation, and its
// colour on a white background. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::control {

// `orientation` is EXIF's value, 1 to 8; others are as 1 (as stored).
inline bool ExchangesSides(int orientation) { return orientation >= 5 && orientation <= 8; }

// Returns the index in a stored picture of width x height pixels of the one that is displayed at (x, y).
inline size_t StoredIndex(int orientation, int width, int height, int x, int y) {
  const int right = width - 1, bottom = height - 1;
  const auto at = [width](int column, int row) {
    return static_cast<size_t>(row) * static_cast<size_t>(width) + static_cast<size_t>(column);
  };
  switch (orientation) {
    case 2:
      return at(right - x, y);
    case 3:
      return at(right - x, bottom - y);
    case 4:
      return at(x, bottom - y);
    case 5:
      return at(y, x);
    case 6:
      return at(y, bottom - x);
    case 7:
      return at(right - y, bottom - x);
    case 8:
      return at(right - y, x);
    default:
      return at(x, y);
  }
}

// Returns a value of 8 bits, composited on white with its straight alpha, rounded to the nearest integer.
inline uint8_t ValueOnWhite(uint32_t value, uint32_t alpha) {
  return static_cast<uint8_t>((value * alpha + 255 * (255 - alpha) + 127) / 255);
}

}  // namespace tessera::control
