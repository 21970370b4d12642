#include "kernels/quantized/quant_rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/macros/planted.h"
#include "kernels/quantized/largest_magnitude.h"

namespace tessera::kernels {
namespace {

#define QUANT_FUNCTION inline
#include "kernels/quantized/quant_forms.inc"

bool AreFinite(const float* values, int64_t count) {
  return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
}

// Whether the values of one row are finite, by widening it.
bool IsRowFinite(const QuantRows& rows, int64_t row) {
  std::vector<float> wide(static_cast<size_t>(rows.columns));
  ReferenceWiden(RunOf(rows, row, 0, rows.columns), wide.data());
  return AreFinite(wide.data(), rows.columns);
}

bool IsHalfFinite(const uint8_t* bytes) { return (HalfAt(bytes) & 0x7c00) != 0x7c00; }

// In the GGUF forms the halves of a block are at these places, or at the first alone. A product of a finite half with
// the largest codes does not overflow in fp32, and one with an infinity or NaN is neither finite.
struct HalfPlaces {
  int64_t first, second;
};
HalfPlaces HalvesOf(QuantType type) {
  switch (type) {
    case QuantType::kQ4_1:
    case QuantType::kQ5_1:
    case QuantType::kQ4_K:
    case QuantType::kQ5_K:
      return {0, 2};
    case QuantType::kQ2_K:
      return {80, 82};
    case QuantType::kQ3_K:
      return {108, 108};
    case QuantType::kQ6_K:
      return {208, 208};
    default:
      return {0, 0};
  }
}

bool AreBlocksFinite(QuantType type, const uint8_t* row, int64_t row_bytes) {
  const HalfPlaces places = HalvesOf(type);
  for (int64_t at = 0; at < row_bytes; at += BlockOf(type).bytes) {
    if (!IsHalfFinite(row + at + places.first) || !IsHalfFinite(row + at + places.second)) return false;
  }
  return true;
}

// The largest magnitude of an fp8 row's codes; infinities and NaN have the largest codes.
float LargestCode(QuantType type, const uint8_t* row, int64_t columns) {
  uint8_t largest = 0;
  for (int64_t i = 0; i < columns; ++i) largest = std::max<uint8_t>(largest, row[i] & 0x7f);
  return type == QuantType::kF8E4M3 ? FloatOfE4M3(largest) : FloatOfE5M2(largest);
}

}  // namespace

QuantRun RunOf(const QuantRows& rows, int64_t row, int64_t first, int64_t count) {
  const int64_t row_of_scale = base::Planted("quant_neighbours_scale") ? row ^ 1 : row;
  QuantRun run{
      .type = rows.type,
      .bytes = reinterpret_cast<const uint8_t*>(rows.bytes) + row * rows.row_bytes + RowBytes(rows.type, first),
      .count = count,
      .scale_block = rows.scale_block,
      .table = rows.table};
  if (rows.type == QuantType::kNibble) {
    run.scales = rows.scales + row_of_scale * (rows.columns / rows.scale_block) + first / rows.scale_block;
    run.scale_offset = first % rows.scale_block;
  } else if (!HasOwnScales(rows.type)) {
    run.scales = rows.scales + row_of_scale;
  }
  return run;
}

bool AllFinite(const QuantRows& rows, int64_t count) {
  for (int64_t row = 0; row < count; ++row) {
    const QuantRun run = RunOf(rows, row, 0, rows.columns);
    float largest = 0;  // of the values before scaling
    int64_t scales = 1;
    switch (rows.type) {
      case QuantType::kInt8:
        largest = 128;
        break;
      case QuantType::kF8E4M3:
      case QuantType::kF8E5M2:
        largest = LargestCode(rows.type, run.bytes, rows.columns);
        break;
      case QuantType::kNibble:
        largest = AreFinite(rows.table, 16) ? LargestMagnitude(rows.table, 16) : INFINITY;
        scales = rows.columns / rows.scale_block;
        break;
      default:
        if (!AreBlocksFinite(rows.type, run.bytes, RowBytes(rows.type, rows.columns))) return false;
        continue;
    }
    if (std::isfinite(LargestMagnitude(run.scales, scales) * largest) && AreFinite(run.scales, scales)) continue;
    if (!IsRowFinite(rows, row)) return false;
  }
  return true;
}

}  // namespace tessera::kernels
