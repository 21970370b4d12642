// Lists all number types that a safetensors file can hold and finds one by its name.
#pragma once

#include <optional>
#include <string_view>

#include "models/weights/safetensors.h"

namespace tessera::models {

inline constexpr StoredType kStoredTypes[] = {
    StoredType::kF64, StoredType::kF32, StoredType::kF16,  StoredType::kBF16,   StoredType::kI64,
    StoredType::kI32, StoredType::kI16, StoredType::kI8,   StoredType::kU64,    StoredType::kU32,
    StoredType::kU16, StoredType::kU8,  StoredType::kBool, StoredType::kF8E4M3, StoredType::kF8E5M2,
};

// The inverse of StoredTypeName; returns nothing for an unknown name.
std::optional<StoredType> StoredTypeOf(std::string_view name);

}  // namespace tessera::models
