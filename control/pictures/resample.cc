#include "control/pictures/resample.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "control/pictures/filter_taps.h"

namespace tessera::control {
namespace {

uint8_t Rounded(double value) { return static_cast<uint8_t>(std::clamp(value, 0.0, 255.0) + 0.5); }

}  // namespace

PictureBox CoverBox(int width, int height, int out_width, int out_height, double focus_x, double focus_y) {
  const double scale = std::min(static_cast<double>(width) / out_width, static_cast<double>(height) / out_height);
  const double box_width = std::min<double>(out_width * scale, width);
  const double box_height = std::min<double>(out_height * scale, height);
  const double left = (width - box_width) * focus_x, top = (height - box_height) * focus_y;
  return {left, top, std::min<double>(left + box_width, width), std::min<double>(top + box_height, height)};
}

Frames Resample(const Frames& image, const PictureBox& box, int width, int height) {
  const std::vector<FilterTaps> columns = TapsOf(image.width, box.left, box.right, width, kLanczosFilter);
  const std::vector<FilterTaps> rows = TapsOf(image.height, box.top, box.bottom, height, kLanczosFilter);
  const size_t row_values = size_t{3} * width;
  // Resamples horizontally only the rows that the vertical pass reads.
  const int first_row = rows.front().first;
  const int end_row = rows.back().first + static_cast<int>(rows.back().weights.size());
  std::vector<float> narrow(row_values * static_cast<size_t>(end_row - first_row));
  float* out = narrow.data();
  for (int y = first_row; y < end_row; ++y) {
    const uint8_t* row = image.bytes.data() + size_t{3} * image.width * y;
    for (const FilterTaps& taps : columns) {
      double sum[3] = {0, 0, 0};
      const uint8_t* pixel = row + size_t{3} * taps.first;
      for (const double weight : taps.weights) {
        for (double& channel : sum) channel += weight * *pixel++;
      }
      for (const double channel : sum) *out++ = static_cast<float>(std::clamp(channel, 0.0, 255.0));  // as Pillow does
    }
  }
  Frames result = {.width = width, .height = height, .bytes = {}};
  result.bytes.reserve(row_values * height);
  std::vector<double> sums(row_values);
  for (const FilterTaps& taps : rows) {
    std::fill(sums.begin(), sums.end(), 0);
    const float* in = narrow.data() + row_values * static_cast<size_t>(taps.first - first_row);
    for (const double weight : taps.weights) {
      for (double& sum : sums) sum += weight * *in++;
    }
    std::transform(sums.begin(), sums.end(), std::back_inserter(result.bytes), Rounded);
  }
  return result;
}

}  // namespace tessera::control
