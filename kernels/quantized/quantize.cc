#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/macros/planted.h"
#include "kernels/quantized/largest_magnitude.h"
#include "kernels/quantized/quant_rows.h"

namespace tessera::kernels {
namespace {

#define QUANT_FUNCTION inline
#include "kernels/quantized/quant_forms.inc"

// Rounds to the nearest integer, ties to even, for |x| <= 2^22.
inline float RoundToEven(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
  return (x + kShift) - kShift;
}

float ScaleFor(float largest, double largest_code) {
  const float scale = static_cast<float>(static_cast<double>(largest) / largest_code);
  return scale > 0 ? scale : 1.0f;
}

// Rounds to IEEE 754 binary16, to nearest, ties to even. x is finite, not negative, and below 65520.
uint16_t HalfOfFloat(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (bits < 0x38800000) {  // below 2^-14: multiples of 2^-24
    return static_cast<uint16_t>(RoundToEven(x * 0x1p24f));
  }
  return static_cast<uint16_t>((bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13);
}

void QuantizeQ8_0(const float* row, int64_t columns, uint8_t* to) {
  constexpr int64_t kValues = 32;
  for (int64_t first = 0; first < columns; first += kValues, to += 2 + kValues) {
    const float scale = LargestMagnitude(row + first, kValues) / 127.0f;
    const float inverse = scale >= 0x1p-126f ? 1.0f / scale : 0.0f;  // smaller ones are 0 in fp16
    const uint16_t half = HalfOfFloat(scale);
    memcpy(to, &half, sizeof half);
    for (int64_t i = 0; i < kValues; ++i) {
      const float x = row[first + i] * inverse, magnitude = std::fabs(x);
      // Adds one half exactly: a magnitude up to 127 has bits to spare for it, except the largest number below 0.5.
      const auto rounded = static_cast<int32_t>(magnitude + (magnitude < 0.5f ? 0.0f : 0.5f));
      to[2 + i] = static_cast<uint8_t>(x < 0 ? -rounded : rounded);
    }
  }
}

}  // namespace

bool CanQuantize(QuantType type) {
  return type == QuantType::kInt8 || type == QuantType::kF8E4M3 || type == QuantType::kQ8_0;
}

void QuantizeRows(QuantType type, const float* rows, int64_t count, int64_t columns, std::byte* bytes, float* scales) {
  const int64_t row_bytes = RowBytes(type, columns);
  for (int64_t r = 0; r < count; ++r) {
    const float* row = rows + r * columns;
    auto* to = reinterpret_cast<uint8_t*>(bytes) + r * row_bytes;
    if (type == QuantType::kQ8_0) {
      QuantizeQ8_0(row, columns, to);
      continue;
    }
    const bool is_int8 = type == QuantType::kInt8;
    const float scale = scales[r] = ScaleFor(LargestMagnitude(row, columns), is_int8 ? 127 : 448);
    if (is_int8) {
      for (int64_t i = 0; i < columns; ++i) {
        const float code = RoundToEven(row[i] / scale), limited = code > 127 ? 127 : code < -127 ? -127 : code;
        to[i] = static_cast<uint8_t>(static_cast<int32_t>(limited));
      }
    } else {
      for (int64_t i = 0; i < columns; ++i) to[i] = CodeOfE4M3(row[i] / scale);
    }
  }
}

void ReferenceQuantizeActivations(const float* row, int64_t columns, uint8_t* codes, float* scale) {
  if (!std::all_of(row, row + columns, [](float value) { return std::isfinite(value); })) {
    std::fill_n(codes, columns, uint8_t{0});
    *scale = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  QuantizeRows(QuantType::kF8E4M3, row, 1, columns, reinterpret_cast<std::byte*>(codes), scale);
}

}  // namespace tessera::kernels
