#include <cstdint>

#include "kernels/cpu/attention.h"

namespace tessera::kernels::cpu {
namespace {

constexpr int kLanes = 8;

#include "kernels/cpu/vector.inc"
// attention.inc uses the definitions of vector.inc, which must come first.
#include "kernels/cpu/attention.inc"

}  // namespace

const AttentionKernels kAttentionAvx2 = kKernels;

}  // namespace tessera::kernels::cpu
