#include "tests/faults/trend.h"

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

constexpr double kDeviations = 3;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Trend TrendOf(const std::vector<Sample>& samples) {
  std::vector<double> all, slopes;
  std::vector<Sample> blocks;
  for (size_t block = 0; block < kTrendBlocks; ++block) {
    std::vector<double> seconds, values;
    for (size_t i = block * samples.size() / kTrendBlocks; i < (block + 1) * samples.size() / kTrendBlocks; ++i) {
      seconds.push_back(samples[i].seconds);
      values.push_back(samples[i].value);
      all.push_back(samples[i].value);
    }
    blocks.push_back({.seconds = Median(seconds), .value = Median(values)});
    for (size_t earlier = 0; earlier < block; ++earlier) {
      slopes.push_back((blocks[block].value - blocks[earlier].value) /
                       (blocks[block].seconds - blocks[earlier].seconds));
    }
  }
  std::sort(slopes.begin(), slopes.end());
  constexpr double n = kTrendBlocks;
  const double spread = kDeviations * std::sqrt(n * (n - 1) * (2 * n + 5) / 18);
  const auto first = static_cast<size_t>(std::max(0.0, std::floor((static_cast<double>(slopes.size()) - spread) / 2)));
  return {.slope = Median(slopes),
          .least = slopes[first],
          .most = slopes[slopes.size() - 1 - first],
          .level = Median(all),
          .seconds = samples.back().seconds - samples.front().seconds};
}

}  // namespace tessera
