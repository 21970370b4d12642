// A vocabulary of word pieces: a word is spelled with the longest pieces from its beginning on. Immutable once filled,
// and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/tokenizers/pair_merges.h"
#include "models/tokenizers/token_table.h"

namespace tessera::models {

class WordPieces {
 public:
  // Pieces that do not begin a word have the prefix in the vocabulary. Words of more characters are unknown.
  WordPieces(std::string prefix, int64_t longest_word) : prefix_(std::move(prefix)), longest_word_(longest_word) {}

  // The id that the text already has, or nothing. The text is well-formed UTF-8.
  std::optional<int64_t> Add(std::string_view text, int64_t id);
  std::optional<int64_t> Find(std::string_view text) const;

  // The pieces of a word, each with the first byte that it stands for; one unknown one if it cannot be spelled.
  void Encode(std::string_view word, int64_t unknown_id, std::vector<PairMerges::Piece>& pieces) const;

 private:
  std::string prefix_;
  int64_t longest_word_;
  TokenTable<int64_t> ids_;
  size_t longest_piece_ = 0;  // bytes
};

}  // namespace tessera::models
