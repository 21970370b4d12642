// From the product of a projection to what attention reads, on a GPU in one pass over memory: the heads of queries,
// keys and values are normalised over their channels, turned by rotary angles and written to where they are wanted.
#pragma once

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

// Where one of queries, keys and values goes: its heads in groups, of any strides (counted in numbers), the channels of
// a head side by side.
struct HeadsPart {
  void* data = nullptr;
  int64_t image_stride = 0, token_stride = 0, group_stride = 0, head_stride = 0;
  int groups = 0, heads = 0;     // heads of a group
  const void* weight = nullptr;  // [head_dim]: RMSNorm by it, or LayerNorm where there is a bias; no norm without
  const void* bias = nullptr;    // [head_dim]
  double eps = 0;
  bool turns = false;
};

inline constexpr int kMaxParts = 3;

struct HeadsArguments {
  Number number = Number::kFloat;
  int64_t images = 0, tokens = 0;
  int head_dim = 0;
  ConstRows packed;            // the heads of all parts, one after the other
  HeadsPart parts[kMaxParts];  // the first `part_count` of them
  int part_count = 0;
  const void* cos = nullptr;  // [tokens, head_dim / 2], in fp32, for fp64 in fp64
  const void* sin = nullptr;
};

// The widest head.
constexpr int MaxHeadDim(Number number) { return number == Number::kFloat ? 512 : 256; }

// cudaErrorInvalidValue: the heads are too wide, or of an odd number of channels that turn. Without rows nothing is
// launched.
cudaError_t LaunchHeads(const HeadsArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
