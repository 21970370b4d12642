#include <cstdint>

#if defined(__AVX512DQ__)
#include <immintrin.h>
#endif

#include "kernels/cpu/elementwise.h"

namespace tessera::kernels::cpu {
namespace {

constexpr int kLanes = 16;

#include "kernels/cpu/vector.inc"
// vector.inc comes first: elementwise.inc is written in its terms.
#include "kernels/cpu/elementwise.inc"

}  // namespace

const ElementwiseKernels kElementwiseAvx512 = kKernels;

}  // namespace tessera::kernels::cpu
