// Lists all number types that a safetensors file can hold and finds one by its name; computes the bytes of tensors; and
// gives the form of GGUF's blocks for kernels.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/quantized/quant_type.h"
#include "models/weights/safetensors.h"

namespace tessera::models {

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

// Returns the form of a type of GGUF's blocks; nothing for other types.
std::optional<kernels::QuantType> QuantTypeOf(StoredType type);

}  // namespace tessera::models
