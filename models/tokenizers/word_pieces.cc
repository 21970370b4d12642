#include "models/tokenizers/word_pieces.h"

#include <algorithm>

namespace tessera::models {

std::optional<int64_t> WordPieces::Add(std::string_view text, int64_t id) {
  const auto [entry, is_new] = ids_.emplace(text, id);
  longest_piece_ = std::max(longest_piece_, text.size());
  return is_new ? std::nullopt : std::make_optional(entry->second);
}

std::optional<int64_t> WordPieces::Find(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? std::nullopt : std::make_optional(found->second);
}

void WordPieces::Encode(std::string_view word, int64_t unknown_id, std::vector<PairMerges::Piece>& pieces) const {
  pieces.clear();
  const auto give_up = [&] { pieces.assign(1, {.id = static_cast<int32_t>(unknown_id), .begin = 0}); };
  const auto begins_character = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; };
  if (std::count_if(word.begin(), word.end(), begins_character) > longest_word_) return give_up();
  for (size_t position = 0; position < word.size();) {
    std::string piece(position == 0 ? "" : prefix_);
    const size_t prefix = piece.size();
    piece += word.substr(position, longest_piece_ - std::min(longest_piece_, prefix));
    // Tries the longest first. A partial character has no piece, because every piece is well-formed.
    auto found = ids_.end();
    while (piece.size() > prefix && (found = ids_.find(piece)) == ids_.end()) piece.pop_back();
    if (found == ids_.end()) return give_up();
    pieces.push_back({.id = static_cast<int32_t>(found->second), .begin = static_cast<int32_t>(position)});
    position += piece.size() - prefix;
  }
}

}  // namespace tessera::models
