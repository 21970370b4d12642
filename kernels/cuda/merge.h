// Two results of attention over different keys as the one over both, on a GPU: each weighs the exponential of its
// logarithm of a sum of exponentials (lse).
#pragma once

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

// [images, tokens, heads, head_dim] and, without the last dimension, the lse; strides are counted in numbers, the
// channels of a head lie side by side.
struct PartialRead {
  const void* data = nullptr;
  int64_t image_stride = 0, token_stride = 0, head_stride = 0;
  const void* lse = nullptr;
  int64_t lse_image_stride = 0, lse_token_stride = 0, lse_head_stride = 0;
};

struct MergeArguments {
  Number number = Number::kFloat;  // of `other`
  bool sum_is_wide = false;        // `read` is in fp32, what was merged before, beside a narrower `other`
  int64_t images = 0, tokens = 0;
  int heads = 0, head_dim = 0;
  PartialRead read, other;  // each lse, like the results, in fp32, for fp64 in fp64
  void* merged = nullptr;   // dense
  void* merged_lse = nullptr;
};

// Without rows nothing is launched.
cudaError_t LaunchMerge(const MergeArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
