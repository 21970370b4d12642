#include "models/hunyuandit/image_sizes.h"

#include <cmath>

#include "control/model/model_cost.h"

namespace tessera::models {
namespace {

int64_t RoundHalfToEven(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

}  // namespace

control::StandardSizes HunyuanSizes() {
  constexpr double kWide = 4.0 / 3.0, kTall = 3.0 / 4.0, kWidest = 16.0 / 9.0, kTallest = 9.0 / 16.0;
  return {.ratio_is_width_by_height = true,
          .sizes = {{1, 1024, 1024},
                    {1, 1280, 1280},
                    {kWide, 768, 1024},
                    {kWide, 864, 1152},
                    {kWide, 960, 1280},
                    {kTall, 1024, 768},
                    {kTall, 1152, 864},
                    {kTall, 1280, 960},
                    {kWidest, 768, 1280},
                    {kTallest, 1280, 768}}};
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
