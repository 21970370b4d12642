#include "models/weights/stored_types.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

namespace tessera::models {
namespace {

using kernels::QuantType;

struct TypeEntry {
  StoredType type;
  std::string_view name;
  StoredBlock block;
  std::optional<QuantType> quantized;
};

// In the order of StoredType.
constexpr TypeEntry Plain(StoredType type, std::string_view name, int64_t size) {
  return {type, name, {.values = 1, .bytes = size}, std::nullopt};
}
constexpr TypeEntry Blocks(StoredType type, std::string_view name, QuantType quantized) {
  const kernels::QuantBlock block = kernels::BlockOf(quantized);
  return {type, name, {.values = block.values, .bytes = block.bytes}, quantized};
}
constexpr TypeEntry kTypes[] = {
    Plain(StoredType::kF64, "F64", 8),
    Plain(StoredType::kF32, "F32", 4),
    Plain(StoredType::kF16, "F16", 2),
    Plain(StoredType::kBF16, "BF16", 2),
    Plain(StoredType::kI64, "I64", 8),
    Plain(StoredType::kI32, "I32", 4),
    Plain(StoredType::kI16, "I16", 2),
    Plain(StoredType::kI8, "I8", 1),
    Plain(StoredType::kU64, "U64", 8),
    Plain(StoredType::kU32, "U32", 4),
    Plain(StoredType::kU16, "U16", 2),
    Plain(StoredType::kU8, "U8", 1),
    Plain(StoredType::kBool, "BOOL", 1),
    Plain(StoredType::kF8E4M3, "F8_E4M3", 1),
    Plain(StoredType::kF8E5M2, "F8_E5M2", 1),
    Blocks(StoredType::kQ4_0, "Q4_0", QuantType::kQ4_0),
    Blocks(StoredType::kQ4_1, "Q4_1", QuantType::kQ4_1),
    Blocks(StoredType::kQ5_0, "Q5_0", QuantType::kQ5_0),
    Blocks(StoredType::kQ5_1, "Q5_1", QuantType::kQ5_1),
    Blocks(StoredType::kQ8_0, "Q8_0", QuantType::kQ8_0),
    Blocks(StoredType::kQ2_K, "Q2_K", QuantType::kQ2_K),
    Blocks(StoredType::kQ3_K, "Q3_K", QuantType::kQ3_K),
    Blocks(StoredType::kQ4_K, "Q4_K", QuantType::kQ4_K),
    Blocks(StoredType::kQ5_K, "Q5_K", QuantType::kQ5_K),
    Blocks(StoredType::kQ6_K, "Q6_K", QuantType::kQ6_K),
    Blocks(StoredType::kIQ4_NL, "IQ4_NL", QuantType::kIQ4_NL),
    Blocks(StoredType::kIQ4_XS, "IQ4_XS", QuantType::kIQ4_XS),
};

// Whether one of the numbers has all bits of `exponent` set, which makes it NaN or an infinity. Processes eight bytes
// at a time: a lane of `rest` is zero if its number has those bits set, and subtracting one from each lane reveals a
// zero lane.
template <class Lane>
bool HasNonFinite(std::span<const std::byte> bytes, Lane exponent) {
  constexpr uint64_t kOnes = ~uint64_t{0} / std::numeric_limits<Lane>::max();
  constexpr uint64_t kHighest = kOnes << (8 * sizeof(Lane) - 1);
  const uint64_t mask = kOnes * exponent;
  uint64_t found = 0;
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min(sizeof(word), bytes.size() - i));
    const uint64_t rest = (word & mask) ^ mask;
    found |= (rest - kOnes) & ~rest & kHighest;
  }
  return found != 0;
}

// Converts a 16-bit float with `exponent_bits` bits of exponent: IEEE half precision or bfloat16.
double FromBits16(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int exponent = (bits & 0x7FFF) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  if (exponent == (1 << exponent_bits) - 1)
    value = mantissa == 0 ? HUGE_VAL : std::nan("");
  else if (exponent > 0)
    value = std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return (bits & 0x8000) != 0 ? -value : value;
}

const TypeEntry& Entry(StoredType type) { return kTypes[static_cast<size_t>(type)]; }

}  // namespace

StoredBlock StoredBlockOf(StoredType type) { return Entry(type).block; }

int64_t StoredTypeSize(StoredType type) {
  const StoredBlock block = StoredBlockOf(type);
  return block.values == 1 ? block.bytes : 0;
}

std::string StoredTypeName(StoredType type) { return std::string(Entry(type).name); }

std::optional<StoredType> StoredTypeOf(std::string_view name) {
  for (const StoredType type : kStoredTypes) {
    if (Entry(type).name == name) return type;
  }
  return std::nullopt;
}

std::optional<int64_t> StoredBytes(StoredType type, const std::vector<int64_t>& shape) {
  const StoredBlock block = StoredBlockOf(type);
  int64_t bytes = block.bytes;
  bool empty = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t size = i + 1 == shape.size() ? shape[i] / block.values : shape[i];
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, size, &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bytes;
}

bool IsFloating(StoredType type) {
  return type == StoredType::kF64 || type == StoredType::kF32 || type == StoredType::kF16 || type == StoredType::kBF16;
}

double FloatingNumber(StoredType type, uint64_t bits) {
  if (type == StoredType::kF64) return std::bit_cast<double>(bits);
  if (type == StoredType::kF32) return std::bit_cast<float>(static_cast<uint32_t>(bits));
  return FromBits16(static_cast<uint16_t>(bits), type == StoredType::kF16 ? 5 : 8);
}

bool AreFinite(StoredType type, std::span<const std::byte> bytes) {
  switch (type) {
    case StoredType::kF64:
      return !HasNonFinite<uint64_t>(bytes, 0x7FF0'0000'0000'0000);
    case StoredType::kF32:
      return !HasNonFinite<uint32_t>(bytes, 0x7F80'0000);
    case StoredType::kF16:
      return !HasNonFinite<uint16_t>(bytes, 0x7C00);
    case StoredType::kBF16:
      return !HasNonFinite<uint16_t>(bytes, 0x7F80);
    default:
      return true;
  }
}

std::optional<QuantType> QuantTypeOf(StoredType type) { return Entry(type).quantized; }

}  // namespace tessera::models
