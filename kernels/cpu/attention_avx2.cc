#include <cstdint>

#include "kernels/cpu/attention.h"

namespace tessera::kernels::cpu {
namespace {

constexpr int kLanes = 8;

#include "kernels/cpu/vector.inc"
// vector.inc comes first: attention.inc is written in its terms.
#include "kernels/cpu/attention.inc"

}  // namespace

const AttentionKernels kAttentionAvx2 = kKernels;

}  // namespace tessera::kernels::cpu
