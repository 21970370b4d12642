#include <cstdint>

#if defined(__FMA__)
#include <immintrin.h>
#endif

#include "kernels/cpu/product.h"

namespace tessera::kernels::cpu {
namespace {

constexpr int kLanes = 8;
constexpr int kVectors = 3;

#include "kernels/cpu/vector.inc"
// product.inc uses the definitions of vector.inc, which must come first.
#include "kernels/cpu/product.inc"

}  // namespace

const ProductKernels kProductDoubleAvx2 = MakeProduct<double>();
const ProductKernels kProductFloatAvx2 = MakeProduct<float>();
const ProductKernels kProductBf16Avx2 = MakeProduct<Bf16>();

}  // namespace tessera::kernels::cpu
