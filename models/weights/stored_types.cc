#include "models/weights/stored_types.h"

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

std::optional<QuantType> QuantTypeOf(StoredType type) { return Entry(type).quantized; }

}  // namespace tessera::models
