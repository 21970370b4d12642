#include <cstdint>

#include "kernels/cpu/elementwise.h"

namespace tessera::cpu {
namespace {

constexpr int kLanes = 8;

#include "kernels/cpu/vector.inc"
// vector.inc comes first: elementwise.inc is written in its terms.
#include "kernels/cpu/elementwise.inc"

}  // namespace

const ElementwiseKernels kElementwiseAvx2 = {
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
