#include "control/pictures/resample.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace tessera::control {
namespace {

constexpr double kLobes = 3;

double Sinc(double x) { return x == 0 ? 1 : std::sin(std::numbers::pi * x) / (std::numbers::pi * x); }
double Lanczos(double x) { return std::abs(x) < kLobes ? Sinc(x) * Sinc(x / kLobes) : 0; }

// The source samples of one output sample along an axis, with weights that add up to 1.
struct Taps {
  int first = 0;
  std::vector<double> weights;
};

std::vector<Taps> TapsOf(int size, double from, double to, int new_size) {
  const double scale = (to - from) / new_size;
  const double stretch = std::max(scale, 1.0);
  std::vector<Taps> all(static_cast<size_t>(new_size));
  for (int i = 0; i < new_size; ++i) {
    const double centre = from + (i + 0.5) * scale;
    const double reach = kLobes * stretch;
    const int first = std::max(static_cast<int>(centre - reach + 0.5), 0);
    const int end = std::min(static_cast<int>(centre + reach + 0.5), size);
    Taps& taps = all[static_cast<size_t>(i)];
    taps.first = first;
    double sum = 0;
    for (int sample = first; sample < end; ++sample) {
      taps.weights.push_back(Lanczos((sample - centre + 0.5) / stretch));
      sum += taps.weights.back();
    }
    for (double& weight : taps.weights) weight /= sum;
  }
  return all;
}

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
  const std::vector<Taps> columns = TapsOf(image.width, box.left, box.right, width);
  const std::vector<Taps> rows = TapsOf(image.height, box.top, box.bottom, height);
  const size_t row_values = size_t{3} * width;
  // Resamples horizontally only the rows that the vertical pass reads.
  const int first_row = rows.front().first;
  const int end_row = rows.back().first + static_cast<int>(rows.back().weights.size());
  std::vector<float> narrow(row_values * static_cast<size_t>(end_row - first_row));
  float* out = narrow.data();
  for (int y = first_row; y < end_row; ++y) {
    const uint8_t* row = image.bytes.data() + size_t{3} * image.width * y;
    for (const Taps& taps : columns) {
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
  for (const Taps& taps : rows) {
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
