#include "client/cli/output/image_comparison.h"

#include <algorithm>
#include <cstdlib>

#include "control/pictures/picture_frames.h"

namespace tessera::client {

ImageComparison CompareImages(const control::Frames& first, const control::Frames& second) {
  ImageComparison result;
  result.pixels = static_cast<int64_t>(first.width) * first.height;
  result.same_size = first.has_shape_of(second);
  if (!result.same_size) {
    result.different_pixels = result.pixels;
    return result;
  }
  int64_t sum = 0, sum_of_squares = 0;
  const auto channels = static_cast<size_t>(first.channels);
  for (size_t at = 0; at < first.bytes.size(); at += channels) {
    int32_t largest = 0;
    for (size_t channel = at; channel < at + channels; ++channel) {
      const int32_t difference = std::abs(first.bytes[channel] - second.bytes[channel]);
      largest = std::max(largest, difference);
      sum += difference;
      sum_of_squares += difference * difference;
    }
    result.different_pixels += largest > 0;
    result.largest_difference = std::max(result.largest_difference, largest);
  }
  if (!first.bytes.empty()) {
    const double values = static_cast<double>(first.bytes.size());
    result.mean_difference = static_cast<double>(sum) / values;
    result.mean_squared_difference = static_cast<double>(sum_of_squares) / values;
  }
  return result;
}

}  // namespace tessera::client
