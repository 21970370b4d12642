// Computes one or two weighted sums of the same tensors and the state of the first, in one pass on a GPU. This is a
// sampler's step, including guidance.
#pragma once

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

constexpr int kMostSummed = 12, kMostSums = 2;

struct WeightedSumsArguments {
  Number number = Number::kFloat;  // kFloat or kDouble
  int64_t count = 0;               // numbers per tensor; all tensors are dense
  int inputs = 0;
  const void* from[kMostSummed] = {};
  double weights[kMostSums][kMostSummed] = {};  // 0: the input is not read for that sum
  void* to[kMostSums] = {};                     // null: that sum is not written
  unsigned long long* state = nullptr;          // see kernels/ops.h; null: not computed
};

// Returns cudaErrorInvalidValue for narrower types, or if the tensors are too large for a grid. Launches nothing if
// there are no numbers.
cudaError_t LaunchWeightedSums(const WeightedSumsArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
