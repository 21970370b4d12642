// StoredType is the type of the numbers that a file of tensors holds: those of safetensors, and GGUF's blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/quantized/quant_type.h"

namespace tessera::models {

enum class StoredType {
  kF64,
  kF32,
  kF16,
  kBF16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  kF8E4M3,
  kF8E5M2,
  kQ4_0,  // blocks of GGUF from here on (kernels/quantized/quant_type.h); no safetensors file has them
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

// The smallest unit of a tensor's bytes: so many values in so many bytes. One value for all types but GGUF's blocks.
struct StoredBlock {
  int64_t values, bytes;
};
StoredBlock StoredBlockOf(StoredType type);

int64_t StoredTypeSize(StoredType type);      // bytes of one element; 0 for blocks of several
std::string StoredTypeName(StoredType type);  // as spelled in the file: "F32", "BF16", "Q4_K", …

// Those that a safetensors file can hold.
inline constexpr StoredType kStoredTypes[] = {
    StoredType::kF64, StoredType::kF32, StoredType::kF16,  StoredType::kBF16,   StoredType::kI64,
    StoredType::kI32, StoredType::kI16, StoredType::kI8,   StoredType::kU64,    StoredType::kU32,
    StoredType::kU16, StoredType::kU8,  StoredType::kBool, StoredType::kF8E4M3, StoredType::kF8E5M2,
};

// The inverse of StoredTypeName for kStoredTypes; returns nothing for another name.
std::optional<StoredType> StoredTypeOf(std::string_view name);

// Returns the bytes of a tensor of that shape, whose last size is a multiple of the type's block; nothing if they do
// not fit into 63 bits. Sizes of zero do not hide an overflow, because the strides of such a tensor would overflow too.
std::optional<int64_t> StoredBytes(StoredType type, const std::vector<int64_t>& shape);

// Whether these are plain floating-point numbers: F64, F32, F16 or BF16.
bool IsFloating(StoredType type);
// Returns the number of such a type whose bits are the lowest of `bits`.
double FloatingNumber(StoredType type, uint64_t bits);

// Whether no number of plain floating-point numbers is infinite or NaN. True for all other types.
bool AreFinite(StoredType type, std::span<const std::byte> bytes);

// Returns the form of a type of GGUF's blocks; nothing for other types.
std::optional<kernels::QuantType> QuantTypeOf(StoredType type);

}  // namespace tessera::models
