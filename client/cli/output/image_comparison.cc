#include "client/cli/output/image_comparison.h"

#include <algorithm>
#include <cstdlib>

namespace tessera::client {

ImageComparison CompareImages(const control::Image& first, const control::Image& second) {
  ImageComparison result;
  result.pixels = static_cast<int64_t>(first.width) * first.height;
  result.same_size = first.width == second.width && first.height == second.height;
  if (!result.same_size) {
    result.different_pixels = result.pixels;
    return result;
  }
  int64_t sum = 0, sum_of_squares = 0;
  for (size_t at = 0; at < first.rgb.size(); at += 3) {
    int32_t largest = 0;
    for (size_t channel = at; channel < at + 3; ++channel) {
      const int32_t difference = std::abs(first.rgb[channel] - second.rgb[channel]);
      largest = std::max(largest, difference);
      sum += difference;
      sum_of_squares += difference * difference;
    }
    result.different_pixels += largest > 0;
    result.largest_difference = std::max(result.largest_difference, largest);
  }
  if (!first.rgb.empty()) {
    const double values = static_cast<double>(first.rgb.size());
    result.mean_difference = static_cast<double>(sum) / values;
    result.mean_squared_difference = static_cast<double>(sum_of_squares) / values;
  }
  return result;
}

}  // namespace tessera::client
