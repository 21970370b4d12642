// The digest of latents by which ranks see whether theirs are equal: the sum of all words, each times its weight,
// modulo 2^64. A word that differs changes it, because its weight is odd; sums of integers do not depend on their
// order. No LibTorch here: kernels/cuda reads it.
#pragma once

#include <cstdint>

namespace tessera::kernels {

// Word i weighs (i + 1) times this, and 1: an odd number.
inline constexpr uint64_t kDigestSpread = 0x1E3779B97F4A7C16;

}  // namespace tessera::kernels
