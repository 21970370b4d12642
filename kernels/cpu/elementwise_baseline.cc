#include <cstdint>

#include "kernels/cpu/elementwise.h"

namespace tessera::kernels::cpu {
namespace {

constexpr int kLanes = 4;

#include "kernels/cpu/vector.inc"
// vector.inc comes first: elementwise.inc is written in its terms.
#include "kernels/cpu/elementwise.inc"

}  // namespace

const ElementwiseKernels kElementwiseBaseline = kKernels;

}  // namespace tessera::kernels::cpu
