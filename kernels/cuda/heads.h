// Turns the product of a projection into the inputs of attention, on a GPU in one pass over memory: normalises the
// heads of queries and keys over their channels, rotates them by rotary angles and writes all heads to their
// destinations.
#pragma once

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

// The destination of queries, keys or values: heads in groups, with arbitrary strides in numbers. The channels of a
// head are adjacent.
struct HeadsPart {
  void* data = nullptr;
  int64_t image_stride = 0, token_stride = 0, group_stride = 0, head_stride = 0;
  int groups = 0, heads = 0;     // heads per group
  const void* weight = nullptr;  // [head_dim]: RMSNorm, or LayerNorm if there is a bias; null: no norm
  const void* bias = nullptr;    // [head_dim]
  double eps = 0;
  bool turns = false;
};

inline constexpr int kMaxParts = 3;

struct HeadsArguments {
  Number number = Number::kFloat;
  int64_t images = 0, tokens = 0;
  int head_dim = 0;
  ConstRows packed;            // the heads of all parts in sequence
  HeadsPart parts[kMaxParts];  // the first `part_count` are used
  int part_count = 0;
  const void* cos = nullptr;  // [tokens, head_dim / 2], in max(fp32, number)
  const void* sin = nullptr;
};

// Widest supported head.
constexpr int MaxHeadDim(Number number) { return number == Number::kFloat ? 512 : 256; }

// Returns cudaErrorInvalidValue if the heads are too wide, or if heads with an odd number of channels are rotated.
// Launches nothing if there are no rows.
cudaError_t LaunchHeads(const HeadsArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
