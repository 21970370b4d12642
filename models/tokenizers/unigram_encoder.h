// Encodes text with a sentencepiece unigram model, like the sentencepiece library. Pure and thread-safe.
#pragma once

#include <string_view>
#include <vector>

#include "models/tokenizers/sentencepiece_model.h"
#include "models/tokenizers/tokenizer.h"
#include "models/tokenizers/unicode_text.h"

namespace tessera::models {

// Applies the model's rules, then the treatment of white space: each becomes "▁", runs are joined, none is left at the
// ends, and one is put in front.
NormalizedText NormalizeForPieces(const SentencePieceModel& model, std::string_view utf8);

// Returns the most probable sequence of pieces. Adjacent unknown characters become one unknown piece, or are spelled as
// bytes. `utf8` must be well-formed. Time is linear in its length.
std::vector<PieceId> EncodeUnigram(const SentencePieceModel& model, std::string_view utf8);

}  // namespace tessera::models
