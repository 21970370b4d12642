#include <cstdint>

#include "base/macros/planted.h"
#include "kernels/cpu/widen.h"

#if defined(__FMA__)

#include <immintrin.h>

namespace tessera::kernels::cpu {
namespace {

constexpr int kLanes = 8;
#define QUANT_FUNCTION inline

#include "kernels/cpu/vector.inc"
#include "kernels/quantized/quant_forms.inc"
// widen.inc uses the definitions of the others, which must come first.
#include "kernels/cpu/widen.inc"

}  // namespace

const WidenKernels kWidenAvx2 = MakeWiden();

}  // namespace tessera::kernels::cpu

#else

namespace tessera::kernels::cpu {

// BestIsa() never returns such an instruction set in this build.
const WidenKernels kWidenAvx2 = {};

}  // namespace tessera::kernels::cpu

#endif
