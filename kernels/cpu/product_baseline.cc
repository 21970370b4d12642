#include <cstdint>

#if defined(__FMA__)
#include <immintrin.h>
#endif

#include "kernels/cpu/product.h"

namespace tessera::kernels::cpu {
namespace {

constexpr int kLanes = 4;
constexpr int kVectors = 3;

#include "kernels/cpu/vector.inc"
// product.inc uses the definitions of vector.inc, which must come first.
#include "kernels/cpu/product.inc"

}  // namespace

const ProductKernels kProductDoubleBaseline = MakeProduct<double>();
const ProductKernels kProductFloatBaseline = MakeProduct<float>();
const ProductKernels kProductBf16Baseline = MakeProduct<Bf16>();

}  // namespace tessera::kernels::cpu
