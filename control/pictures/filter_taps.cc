#include "control/pictures/filter_taps.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera::control {
namespace {

constexpr double kLobes = 3;

double Sinc(double x) { return x == 0 ? 1 : std::sin(std::numbers::pi * x) / (std::numbers::pi * x); }
double Lanczos(double x) { return std::abs(x) < kLobes ? Sinc(x) * Sinc(x / kLobes) : 0; }

double Bicubic(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * kA : 0;
}

}  // namespace

const ResamplingFilter kLanczosFilter{.kernel = Lanczos, .support = kLobes};
const ResamplingFilter kBicubicFilter{.kernel = Bicubic, .support = 2};

std::vector<FilterTaps> TapsOf(int size, double from, double to, int new_size, const ResamplingFilter& filter) {
  const double scale = (to - from) / new_size;
  const double stretch = std::max(scale, 1.0);
  std::vector<FilterTaps> all(static_cast<size_t>(new_size));
  for (int i = 0; i < new_size; ++i) {
    const double centre = from + (i + 0.5) * scale;
    const double reach = filter.support * stretch;
    const int first = std::max(static_cast<int>(centre - reach + 0.5), 0);
    const int end = std::min(static_cast<int>(centre + reach + 0.5), size);
    FilterTaps& taps = all[static_cast<size_t>(i)];
    taps.first = first;
    double sum = 0;
    for (int sample = first; sample < end; ++sample) {
      taps.weights.push_back(filter.kernel((sample - centre + 0.5) / stretch));
      sum += taps.weights.back();
    }
    for (double& weight : taps.weights) weight /= sum;
  }
  return all;
}

}  // namespace tessera::control
