// Encodes text with a sentencepiece unigram model, as the sentencepiece library does. Pure and thread-safe.
#pragma once

#include <string_view>
#include <vector>

#include "models/tokenizers/sentencepiece_model.h"
#include "models/tokenizers/tokenizer.h"
#include "models/tokenizers/unicode_text.h"

namespace tessera::models {

// The model's rules, then white space: made "▁", runs joined, none at the ends, one in front.
NormalizedText NormalizeForPieces(const SentencePieceModel& model, std::string_view utf8);

// The most probable sequence of pieces. Adjoining unknown characters are one unknown piece, or are spelled as bytes.
// `utf8` is well-formed. Time is linear in its length.
std::vector<PieceId> EncodeUnigram(const SentencePieceModel& model, std::string_view utf8);

}  // namespace tessera::models
