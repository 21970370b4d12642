#include <cstdint>

#if defined(__AVX512DQ__)
#include <immintrin.h>
#endif

#include "kernels/cpu/attention.h"

namespace tessera::kernels::cpu {
namespace {

constexpr int kLanes = 16;

#include "kernels/cpu/vector.inc"
// attention.inc uses the definitions of vector.inc, which must come first.
#include "kernels/cpu/attention.inc"

}  // namespace

const AttentionKernels kAttentionAvx512 = kKernels;

}  // namespace tessera::kernels::cpu
