// A block's state as bytes and back, as it would be handed from one pipeline stage to the next.
#pragma once

#include <string>

#include "models/transformer.h"

namespace tessera::golden {

std::string ToBytes(const models::BlockState& state);
models::BlockState FromBytes(const std::string& bytes);

}  // namespace tessera::golden
