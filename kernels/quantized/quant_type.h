// QuantType says how the values of a quantized weight matrix are packed. A matrix [rows, columns] is stored row by row,
// and a row is whole blocks: a range of rows, and a range of columns that begins and ends at blocks, can be taken from
// the bytes without unpacking them.
//
// The values are numbers in fp32, made by operations in fp32 in the order that kernels/quantized/quant_forms.inc
// defines. The GGUF forms are those of ggml (ggml-common.h, ggml-quants.c); those of kNibble are bitsandbytes' nf4 and
// fp4; the fp8 codes are those of "FP8 Formats for Deep Learning" (Micikevicius et al., 2022).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera::kernels {

enum class QuantType : uint8_t {
  kInt8,    // one byte for a value, two's complement; an fp32 scale for each row
  kF8E4M3,  // an e4m3fn code; an fp32 scale for each row, 1 if the file has none
  kF8E5M2,
  kNibble,  // two codes in a byte, the high half first; value = table[code] * scale of its block
  kQ4_0,    // GGUF from here on: all is in the row's bytes
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
};

inline constexpr QuantType kQuantTypes[] = {
    QuantType::kInt8, QuantType::kF8E4M3, QuantType::kF8E5M2, QuantType::kNibble, QuantType::kQ4_0, QuantType::kQ4_1,
    QuantType::kQ5_0, QuantType::kQ5_1,   QuantType::kQ8_0,   QuantType::kQ2_K,   QuantType::kQ3_K, QuantType::kQ4_K,
    QuantType::kQ5_K, QuantType::kQ6_K,   QuantType::kIQ4_NL, QuantType::kIQ4_XS,
};

// The smallest unit of a row: so many values in so many bytes.
struct QuantBlock {
  int64_t values, bytes;
};

constexpr QuantBlock BlockOf(QuantType type) {
  switch (type) {
    case QuantType::kInt8:
    case QuantType::kF8E4M3:
    case QuantType::kF8E5M2:
      return {1, 1};
    case QuantType::kNibble:
      return {2, 1};
    case QuantType::kQ4_0:
    case QuantType::kIQ4_NL:
      return {32, 18};
    case QuantType::kQ4_1:
      return {32, 20};
    case QuantType::kQ5_0:
      return {32, 22};
    case QuantType::kQ5_1:
      return {32, 24};
    case QuantType::kQ8_0:
      return {32, 34};
    case QuantType::kQ2_K:
      return {256, 84};
    case QuantType::kQ3_K:
      return {256, 110};
    case QuantType::kQ4_K:
      return {256, 144};
    case QuantType::kQ5_K:
      return {256, 176};
    case QuantType::kQ6_K:
      return {256, 210};
    case QuantType::kIQ4_XS:
      return {256, 136};
  }
  return {1, 1};
}

// Whether all that a value needs is in the row's bytes, as in GGUF files.
constexpr bool HasOwnScales(QuantType type) { return type >= QuantType::kQ4_0; }

// The bytes of a row of `columns` values, which must be whole blocks.
constexpr int64_t RowBytes(QuantType type, int64_t columns) {
  const QuantBlock block = BlockOf(type);
  return columns / block.values * block.bytes;
}

// "int8", "fp8_e4m3", "fp8_e5m2", "nibble", and GGUF's own names ("Q4_K").
std::string_view QuantTypeName(QuantType type);

// The inverse of QuantTypeName; returns nothing for an unknown name.
std::optional<QuantType> QuantTypeOf(std::string_view name);

}  // namespace tessera::kernels
