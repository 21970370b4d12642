#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tessera::kernels {

// Returns the largest magnitude of `count` values, 0 if there are none. NaN is ignored.
inline float LargestMagnitude(const float* values, int64_t count) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float magnitude = std::fabs(values[i + lane]);
      lanes[lane] = magnitude > lanes[lane] ? magnitude : lanes[lane];
    }
  }
  for (; i < count; ++i) lanes[0] = std::max(lanes[0], std::fabs(values[i]));
  return *std::max_element(lanes, lanes + kLanes);
}

}  // namespace tessera::kernels
