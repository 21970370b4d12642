// WordPieces is a vocabulary of word pieces. A word is spelled from its beginning, each time with the longest piece.
// Immutable once filled, and thread-safe.
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
  // In the vocabulary, pieces that do not begin a word have the prefix. Words of more than `longest_word` characters
  // are unknown.
  WordPieces(std::string prefix, int64_t longest_word) : prefix_(std::move(prefix)), longest_word_(longest_word) {}

  // Adds a text, which is well-formed UTF-8. If it is already present, returns its id and adds nothing.
  std::optional<int64_t> Add(std::string_view text, int64_t id);
  std::optional<int64_t> Find(std::string_view text) const;

  // Appends the pieces of a word, each with the offset of its first byte; a single unknown piece if it cannot be
  // spelled.
  void Encode(std::string_view word, int64_t unknown_id, std::vector<PairMerges::Piece>& pieces) const;

 private:
  std::string prefix_;
  int64_t longest_word_;
  TokenTable<int64_t> ids_;
  size_t longest_piece_ = 0;  // bytes
};

}  // namespace tessera::models
