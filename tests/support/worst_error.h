#pragma once

#include <ATen/ATen.h>

namespace tessera {

// Returns the largest difference, relative to the largest expected number. NaN if either is NaN.
inline double WorstError(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor wide = expected.to(at::kDouble);
  return ((actual.to(at::kDouble) - wide).abs().max() / wide.abs().max()).item<double>();
}

}  // namespace tessera
