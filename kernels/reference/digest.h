// The digest of latents by which ranks check that theirs are equal: the sum of all words, each multiplied by its
// weight, modulo 2^64. Every weight is odd, so changing one word changes the digest; an integer sum does not depend on
// the order of its terms. The header does not use LibTorch because kernels/cuda includes it.
#pragma once

#include <cstdint>

namespace tessera::kernels {

// The weight of word i is (i + 1) * kDigestSpread + 1, an odd number.
inline constexpr uint64_t kDigestSpread = 0x1E3779B97F4A7C16;

}  // namespace tessera::kernels
