// The versions of widening quantized weights for the instruction sets. All give the bits of ReferenceWiden, which is
// the version for the lowest one. The header uses no LibTorch.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/quantized/quant_rows.h"

namespace tessera::kernels::cpu {

struct WidenKernels {
  void (*to_float)(const QuantRun& run, float* to);
  void (*to_bf16)(const QuantRun& run, uint16_t* to);
};

extern const WidenKernels kWidenAvx2, kWidenAvx512;

const WidenKernels& WidenFor(Isa isa);

// Writes rows [first_row, first_row + count) to `to` [count, columns], in fp32 or rounded once to bf16.
void WidenRows(const QuantRows& from, int64_t first_row, int64_t count, float* to, Isa isa = BestIsa());
void WidenRowsToBf16(const QuantRows& from, int64_t first_row, int64_t count, uint16_t* to, Isa isa = BestIsa());

}  // namespace tessera::kernels::cpu
