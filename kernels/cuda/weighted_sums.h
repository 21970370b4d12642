// One or two weighted sums of the same tensors in one pass on a GPU, and what is to be known of the first: a step of a
// sampler, guidance included.
#pragma once

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

constexpr int kMostSummed = 12, kMostSums = 2;

struct WeightedSumsArguments {
  Number number = Number::kFloat;  // kFloat or kDouble
  int64_t count = 0;               // numbers of each tensor; all are dense
  int inputs = 0;
  const void* from[kMostSummed] = {};
  double weights[kMostSums][kMostSummed] = {};  // 0: the input is not read for that sum
  void* to[kMostSums] = {};                     // null: that sum is not asked for
  unsigned long long* state = nullptr;          // as kernels/ops.h says; null: not asked for
};

// cudaErrorInvalidValue: narrower numbers, or more than a grid can be of. Without numbers nothing is launched.
cudaError_t LaunchWeightedSums(const WeightedSumsArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
