#include "models/hunyuandit/image_sizes.h"

#include <cmath>
#include <limits>

namespace tessera::models {
namespace {

struct StandardSize {
  double ratio;  // width / height
  HunyuanSize size;
};
constexpr StandardSize kStandardSizes[] = {
    {1.0, {1024, 1024}},       {1.0, {1280, 1280}},       {4.0 / 3.0, {768, 1024}}, {4.0 / 3.0, {864, 1152}},
    {4.0 / 3.0, {960, 1280}},  {3.0 / 4.0, {1024, 768}},  {3.0 / 4.0, {1152, 864}}, {3.0 / 4.0, {1280, 960}},
    {16.0 / 9.0, {768, 1280}}, {9.0 / 16.0, {1280, 768}},
};

int64_t RoundHalfToEven(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

}  // namespace

HunyuanSize HunyuanStandardSize(int64_t height, int64_t width) {
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  double nearest = kStandardSizes[0].ratio;
  for (const StandardSize& candidate : kStandardSizes) {
    if (std::abs(candidate.ratio - ratio) < std::abs(nearest - ratio)) nearest = candidate.ratio;
  }
  HunyuanSize best;
  int64_t difference = std::numeric_limits<int64_t>::max();
  for (const StandardSize& candidate : kStandardSizes) {
    const int64_t apart = std::abs(candidate.size.height * candidate.size.width - height * width);
    if (candidate.ratio == nearest && apart < difference) {
      difference = apart;
      best = candidate.size;
    }
  }
  return best;
}

HunyuanRopeRegion HunyuanRopeRegionFor(int64_t grid_height, int64_t grid_width, int64_t base) {
  const double side = static_cast<double>(base), h = static_cast<double>(grid_height),
               w = static_cast<double>(grid_width);
  const int64_t fitted_height = grid_height > grid_width ? base : RoundHalfToEven(side / w * h);
  const int64_t fitted_width = grid_height > grid_width ? RoundHalfToEven(side / h * w) : base;
  const int64_t top = RoundHalfToEven(static_cast<double>(base - fitted_height) / 2);
  const int64_t left = RoundHalfToEven(static_cast<double>(base - fitted_width) / 2);
  return {.top = top, .left = left, .bottom = top + fitted_height, .right = left + fitted_width};
}

}  // namespace tessera::models
