#include "kernels/cpu/widen.h"

namespace tessera::kernels::cpu {
namespace {

constexpr WidenKernels kReference = {.to_float = ReferenceWiden, .to_bf16 = ReferenceWidenToBf16};

}  // namespace

const WidenKernels& WidenFor(Isa isa) {
  return isa == Isa::kBaseline ? kReference : isa == Isa::kAvx2 ? kWidenAvx2 : kWidenAvx512;
}

void WidenRows(const QuantRows& from, int64_t first_row, int64_t count, float* to, Isa isa) {
  const WidenKernels& kernels = WidenFor(isa);
  for (int64_t row = 0; row < count; ++row) {
    kernels.to_float(RunOf(from, first_row + row, 0, from.columns), to + row * from.columns);
  }
}

void WidenRowsToBf16(const QuantRows& from, int64_t first_row, int64_t count, uint16_t* to, Isa isa) {
  const WidenKernels& kernels = WidenFor(isa);
  for (int64_t row = 0; row < count; ++row) {
    kernels.to_bf16(RunOf(from, first_row + row, 0, from.columns), to + row * from.columns);
  }
}

}  // namespace tessera::kernels::cpu
