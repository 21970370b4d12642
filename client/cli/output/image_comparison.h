// Measures the difference between two images, byte by byte.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::control {
struct Frames;
}

namespace tessera::client {

struct ImageComparison {
  bool same_size = false;
  int64_t pixels = 0;              // of the first image
  int64_t different_pixels = 0;    // pixels with any differing channel; all if the sizes differ
  int32_t largest_difference = 0;  // of one channel, 0 to 255
  double mean_difference = 0;      // over all channels of all pixels
  double mean_squared_difference = 0;

  bool identical() const { return same_size && different_pixels == 0; }
};

ImageComparison CompareImages(const control::Frames& first, const control::Frames& second);

}  // namespace tessera::client
