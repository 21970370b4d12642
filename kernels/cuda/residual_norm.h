// What lies between two products of a block, on a GPU in one pass over memory: a sum x + gate · y, and a norm of it
// with a factor and an offset. Every part but x may be left out; without a norm the sum alone is written.
#pragma once

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

enum class NormKind { kNone, kLayer, kRootMeanSquare };

struct ResidualNormArguments {
  Number number = Number::kFloat;
  int64_t images = 0, tokens = 0, channels = 0;
  ConstRows x, y;  // without y the sum is x
  PerImage gate;   // 1 where there is none
  NormKind norm = NormKind::kNone;
  double eps = 0;
  PerImage factor, offset;       // 1 and 0 where there is none
  bool factor_from_one = false;  // the norm is multiplied by 1 + factor
  void* sum = nullptr;           // rounded to the number's type before it is normalised; not written where null
  void* normalised = nullptr;    // both dense, [images, tokens, channels]
};

// The longest row that a norm takes.
constexpr int64_t MaxNormChannels(Number number) {
  return number == Number::kBf16 ? 16384 : number == Number::kFloat ? 8192 : 4096;
}

// cudaErrorInvalidValue: a row is too long. Without rows nothing is launched.
cudaError_t LaunchResidualNorm(const ResidualNormArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
