// Checks, for fuzz targets, the properties that tokens of any text must have.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "models/tokenizers/tokenizer.h"

namespace tessera {

// Aborts if one is violated.
inline void CheckTokens(const models::Tokenizer& tokenizer, std::string_view text) {
  constexpr int64_t kMaxLength = 16;
  const absl::StatusOr<models::TokenIds> tokens = tokenizer.Encode(text, kMaxLength);
  if (!tokens.ok()) return;
  const int64_t end = tokenizer.end_id();
  if (end >= 0 && (tokens->ids.empty() || tokens->ids.back() != end)) std::abort();
  if (static_cast<int64_t>(tokens->ids.size()) != std::min(tokens->tokens_before_truncation, kMaxLength)) std::abort();
  if (!text.ends_with(tokens->cut_text) && !text.starts_with(tokens->cut_text)) std::abort();
  for (const int64_t id : tokens->ids) {
    if (id < 0 || id >= tokenizer.vocabulary_size()) std::abort();
  }
  if (tokenizer.pad_id() < -1 || tokenizer.pad_id() >= tokenizer.vocabulary_size()) std::abort();
}

}  // namespace tessera
