// Replaces CUDA's header of that name: defines the number and its conversions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "tests/support/cuda_emulation/include/cuda_runtime_api.h"

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Rounds to nearest, ties to even. Every NaN becomes the same NaN.
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  if (std::isnan(x)) return {0x7fff};
  const auto bits = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
