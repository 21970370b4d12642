// Computes the operations between two products of a block, on a GPU in one pass over memory: a sum x + gate · y, and a
// norm of it with a factor and an offset, which may be quantized to e4m3. Every part but x is optional; without a norm
// only the sum is written.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

enum class NormKind { kNone, kLayer, kRootMeanSquare };

struct ResidualNormArguments {
  Number number = Number::kFloat;
  int64_t images = 0, tokens = 0, channels = 0;
  ConstRows x, y;  // without y the sum is x
  PerImage gate;   // 1 if absent
  NormKind norm = NormKind::kNone;
  double eps = 0;
  PerImage factor, offset;       // 1 and 0 if absent
  bool factor_from_one = false;  // the norm is multiplied by 1 + factor
  void* sum = nullptr;           // rounded to the number's type before it is normalised; null: not written
  void* normalised = nullptr;    // like `sum`, dense [images, tokens, channels]
  // If `codes` is not null, the norm is not written as `normalised`. It is rounded to the number's type, multiplied by
  // `multiplier` if there is one and rounded again, and quantized as kernels/quantized/quant_rows.h defines it for
  // activations.
  PerImage multiplier;
  uint8_t* codes = nullptr;  // dense [images, tokens, channels]
  float* scales = nullptr;   // [images, tokens]
};

// Longest row that a norm supports.
constexpr int64_t MaxNormChannels(Number number) {
  return number == Number::kBf16 ? 16384 : number == Number::kFloat ? 8192 : 4096;
}

// Longest row that is quantized: its threads hold one chunk of 16 bytes each.
constexpr int64_t MaxQuantizedNormChannels(Number number) {
  return number == Number::kBf16 ? 6144 : number == Number::kFloat ? 3072 : 1536;
}

// Returns cudaErrorInvalidValue if a row is too long. Launches nothing if there are no rows.
cudaError_t LaunchResidualNorm(const ResidualNormArguments& arguments, cudaStream_t stream);

}  // namespace tessera::kernels::cuda
