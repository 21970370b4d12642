// Maps LibTorch's dtypes to the types of weight files.
#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "models/weights/safetensors.h"

namespace tessera::models {

// Returns the file type that stores the elements of a tensor, the inverse of TorchType (weight_loader.h); nothing for
// dtypes that no file has.
std::optional<StoredType> StoredTypeOf(at::ScalarType type);

}  // namespace tessera::models
