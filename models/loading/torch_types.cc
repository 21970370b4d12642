#include "models/loading/torch_types.h"

#include "models/loading/weight_loader.h"
#include "models/weights/stored_types.h"

namespace tessera::models {

std::optional<StoredType> StoredTypeOf(at::ScalarType type) {
  for (const StoredType stored : kStoredTypes) {
    if (TorchType(stored) == type) return stored;
  }
  return std::nullopt;
}

}  // namespace tessera::models
