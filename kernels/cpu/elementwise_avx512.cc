#include <cstdint>

#if defined(__AVX512DQ__)
#include <immintrin.h>
#endif

#include "kernels/cpu/elementwise.h"

namespace tessera::kernels::cpu {
namespace {

constexpr int kLanes = 16;

#include "kernels/cpu/vector.inc"
// elementwise.inc uses the definitions of vector.inc, which must come first.
#include "kernels/cpu/elementwise.inc"

}  // namespace

const ElementwiseKernels kElementwiseAvx512 = kKernels;

}  // namespace tessera::kernels::cpu
