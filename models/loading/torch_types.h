// The types of LibTorch as files spell them.
#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "models/weights/safetensors.h"

namespace tessera::models {

// The type that stores the numbers of a tensor, the reverse of TorchType (weight_loader.h); nothing for those that no
// file has.
std::optional<StoredType> StoredTypeOf(at::ScalarType type);

}  // namespace tessera::models
