#include <cstdint>

#if defined(__AVX512DQ__)
#include <immintrin.h>
#endif

#include "kernels/cpu/elementwise.h"

namespace tessera::cpu {
namespace {

constexpr int kLanes = 16;

#include "kernels/cpu/vector.inc"
// vector.inc comes first: elementwise.inc is written in its terms.
#include "kernels/cpu/elementwise.inc"

}  // namespace

const ElementwiseKernels kElementwiseAvx512 = {
    .layer_norm_modulate = LayerNormModulate,
    .gated_residual = GatedResidual,
    .rms_norm = RmsNorm,
    .gelu_tanh = GeluTanh,
    .silu = Silu,
    .affine = Affine,
    .moments = Moments,
    .largest_square = LargestSquare,
};

}  // namespace tessera::cpu
