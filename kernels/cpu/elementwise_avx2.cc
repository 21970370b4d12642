#include <cstdint>

#include "kernels/cpu/elementwise.h"

namespace tessera::kernels::cpu {
namespace {

constexpr int kLanes = 8;

#include "kernels/cpu/vector.inc"
// elementwise.inc uses the definitions of vector.inc, which must come first.
#include "kernels/cpu/elementwise.inc"

}  // namespace

const ElementwiseKernels kElementwiseAvx2 = kKernels;

}  // namespace tessera::kernels::cpu
