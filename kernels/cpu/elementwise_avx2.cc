#include <cstdint>

#include "kernels/cpu/elementwise.h"

namespace tessera::kernels::cpu {
namespace {

constexpr int kLanes = 8;

#include "kernels/cpu/vector.inc"
// vector.inc comes first: elementwise.inc is written in its terms.
#include "kernels/cpu/elementwise.inc"

}  // namespace

const ElementwiseKernels kElementwiseAvx2 = kKernels;

}  // namespace tessera::kernels::cpu
