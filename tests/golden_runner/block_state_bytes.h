// Converts a block's state to bytes and back, as if one pipeline stage passed it to the next.
#pragma once

#include <string>

#include "models/transformer.h"

namespace tessera::golden {

std::string ToBytes(const models::BlockState& state);
models::BlockState FromBytes(const std::string& bytes);

}  // namespace tessera::golden
