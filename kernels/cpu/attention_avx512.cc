#include <cstdint>

#if defined(__AVX512DQ__)
#include <immintrin.h>
#endif

#include "kernels/cpu/attention.h"

namespace tessera::kernels::cpu {
namespace {

constexpr int kLanes = 16;

#include "kernels/cpu/vector.inc"
// vector.inc comes first: attention.inc is written in its terms.
#include "kernels/cpu/attention.inc"

}  // namespace

const AttentionKernels kAttentionAvx512 = kKernels;

}  // namespace tessera::kernels::cpu
