#include "models/weights/stored_types.h"

namespace tessera::models {

std::optional<StoredType> StoredTypeOf(std::string_view name) {
  for (const StoredType type : kStoredTypes) {
    if (StoredTypeName(type) == name) return type;
  }
  return std::nullopt;
}

}  // namespace tessera::models
