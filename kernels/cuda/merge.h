// Combines two results of attention over different keys into the result over both, on a GPU. The weight of each is the
// exponential of its log-sum-exp (lse).
#pragma once

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

// A result [images, tokens, heads, head_dim] and its lse, without the last dimension. Strides are in numbers; the
// channels of a head are adjacent.
struct PartialRead {
  const void* data = nullptr;
  int64_t image_stride = 0, token_stride = 0, head_stride = 0;
  const void* lse = nullptr;
  int64_t lse_image_stride = 0, lse_token_stride = 0, lse_head_stride = 0;
};

struct MergeArguments {
  Number number = Number::kFloat;  // type of `other`
  bool sum_is_wide = false;        // `read` is in fp32, an earlier merge, while `other` is narrower
  int64_t images = 0, tokens = 0;
  int heads = 0, head_dim = 0;
  PartialRead read, other;  // each lse, like the results, in max(fp32, number)
  void* merged = nullptr;   // dense
  void* merged_lse = nullptr;
};

// Launches nothing if there are no rows.
cudaError_t LaunchMerge(const MergeArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
