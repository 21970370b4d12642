// The unigram model of a tokenizer.json: the most probable sequence of tokens for a piece of text.
//
// Unlike in a sentencepiece model every token of the vocabulary can spell text, sums are rounded to double precision,
// and each piece that the pre-tokenizer made is searched by itself.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/tokenizers/piece_model.h"
#include "models/tokenizers/tokenizer_parts.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<PieceModel>> ReadUnigramModel(TokenizerPart& part);

}  // namespace tessera
