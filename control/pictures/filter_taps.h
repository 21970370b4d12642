// FilterTaps computes which samples of an axis make each sample of that axis at another size, and their weights, as
// Pillow's resampling does. Pure.
#pragma once

#include <vector>

namespace tessera::control {

// An interpolation kernel. It is 0 outside [-support, support].
struct ResamplingFilter {
  double (*kernel)(double x);
  double support;
};

extern const ResamplingFilter kLanczosFilter;  // three lobes
extern const ResamplingFilter kBicubicFilter;  // a = -0.5

// The source samples of one output sample along an axis, with weights that add up to 1.
struct FilterTaps {
  int first = 0;
  std::vector<double> weights;
};

// Returns the taps of `new_size` samples that cover the interval [from, to] of an axis with `size` samples. The filter
// is widened by the reduction factor to prevent aliasing. The interval may be empty: then every output sample is the
// filter's value at that place. 0 <= from <= to <= size; `size` and `new_size` are at least 1.
std::vector<FilterTaps> TapsOf(int size, double from, double to, int new_size, const ResamplingFilter& filter);

}  // namespace tessera::control
