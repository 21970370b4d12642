// Measures the correlation of two noise streams.
#pragma once

#include <cmath>
#include <vector>

#include "runtime/denoising/noise.h"

namespace tessera {

inline std::vector<double> Draw(const runtime::NoiseKey& key, uint64_t first, size_t count) {
  std::vector<double> values(count);
  runtime::FillNormal(key, first, values);
  return values;
}

// Returns the correlation of one million values of each stream. Independent streams stay within five standard errors.
inline double Correlation(const runtime::NoiseKey& a, const runtime::NoiseKey& b) {
  const size_t count = 1 << 20;
  const std::vector<double> x = Draw(a, 0, count), y = Draw(b, 0, count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += x[i] * y[i];
  return std::abs(sum) / static_cast<double>(count);
}

}  // namespace tessera
