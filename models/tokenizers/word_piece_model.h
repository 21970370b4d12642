// The word pieces of a tokenizer.json.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/tokenizers/piece_model.h"
#include "models/tokenizers/tokenizer_parts.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<PieceModel>> ReadWordPieceModel(TokenizerPart& part);

}  // namespace tessera
