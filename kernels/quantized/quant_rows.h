// QuantRows is a view of a quantized weight matrix in main memory. The functions here define the values of its forms,
// quantize rows of fp32, and say whether all values are finite. They use no LibTorch and are thread-safe.
// kernels/cpu/widen.h widens rows with the processor's instruction set; the operators over tensors are in
// kernels/ops.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quantized/quant_type.h"

namespace tessera::kernels {

struct QuantRows {
  QuantType type = QuantType::kInt8;
  const std::byte* bytes = nullptr;  // of the first row
  int64_t row_bytes = 0;             // between rows; at least RowBytes(type, columns)
  int64_t columns = 0;               // of a row; whole blocks
  // kInt8, kF8*: [rows]. kNibble: [rows, columns / scale_block]. Else null.
  const float* scales = nullptr;
  int64_t scale_block = 0;       // kNibble: values for one scale, even, a divisor of columns
  const float* table = nullptr;  // kNibble: the values of the 16 codes
};

// Adjacent columns of one row, whole blocks.
struct QuantRun {
  QuantType type = QuantType::kInt8;
  const uint8_t* bytes = nullptr;
  int64_t count = 0;              // values
  const float* scales = nullptr;  // kInt8, kF8*: the row's. kNibble: of the first value's block and on. Else null
  int64_t scale_block = 0;
  int64_t scale_offset = 0;  // kNibble: values of the first scale's block before the run
  const float* table = nullptr;
};

// Returns columns [first, first + count) of a row; both are multiples of the type's block.
QuantRun RunOf(const QuantRows& rows, int64_t row, int64_t first, int64_t count);

// The definition of widening: write the values of a run in fp32, or rounded once to bf16, to nearest, ties to even.
// Codes that are no numbers give NaN, which is 0x7fc0 in bf16.
void ReferenceWiden(const QuantRun& run, float* to);
void ReferenceWidenToBf16(const QuantRun& run, uint16_t* to);

// Whether no value of `count` rows is infinite or NaN in fp32. Looks at codes and scales and widens only rows whose
// largest value may overflow.
bool AllFinite(const QuantRows& rows, int64_t count);

// Whether QuantizeRows makes this form: kInt8, kF8E4M3 and kQ8_0.
bool CanQuantize(QuantType type);

// Quantizes rows [count, columns] of fp32, which must be finite, to `bytes` [count, RowBytes(type, columns)].
//   kInt8    scale = (largest magnitude of the row) / 127, computed in fp64 and rounded to fp32, 1 for a row of zeros;
//            codes are rounded to nearest, ties to even
//   kF8E4M3  the same with 448, the largest e4m3fn number
//   kQ8_0    as ggml's quantize_row_q8_0_ref: d = largest / 127 of 32 values, x * (1 / d) rounded to nearest, ties away
//            from zero; d is stored in fp16
// `scales` [count] gets the scales; kQ8_0 has none. CanQuantize(type) must hold.
void QuantizeRows(QuantType type, const float* rows, int64_t count, int64_t columns, std::byte* bytes, float* scales);

// The definition of how the input of a product in fp8 is quantized: one row as QuantizeRows does it in kF8E4M3. A row
// with a value that is infinite or NaN gets the scale NaN and codes of 0, so that every product with it is NaN.
void ReferenceQuantizeActivations(const float* row, int64_t columns, uint8_t* codes, float* scale);

}  // namespace tessera::kernels
