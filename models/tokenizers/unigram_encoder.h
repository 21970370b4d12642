// Encodes text with a sentencepiece unigram model, as the sentencepiece library does. Pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizers/sentencepiece_model.h"

namespace tessera {

struct NormalizedText {
  std::string text;
  std::vector<size_t> origins;  // for every byte of `text`, the offset in the original that it stems from
};

// The model's rules, then white space: made "▁", runs joined, none at the ends, one in front.
NormalizedText NormalizeForPieces(const SentencePieceModel& model, std::string_view utf8);

struct PieceId {
  int64_t id;
  size_t begin;  // offset in the original of the text it stands for
};

// The most probable sequence of pieces. Adjoining unknown characters are one unknown piece, or are spelled as bytes.
// `utf8` is well-formed. Time is linear in its length.
std::vector<PieceId> EncodeUnigram(const SentencePieceModel& model, std::string_view utf8);

}  // namespace tessera
