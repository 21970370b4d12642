// Byte pair encoding of a tokenizer.json: the characters of a piece are tokens, and pairs of tokens are joined.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/tokenizers/piece_model.h"
#include "models/tokenizers/tokenizer_parts.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<PieceModel>> ReadBpeModel(TokenizerPart& part);

}  // namespace tessera
