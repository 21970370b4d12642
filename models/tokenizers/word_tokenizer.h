// WordTokenizer is the base of CLIP's and BERT's tokenizers: special tokens are extracted from the text, the rest is
// normalized, and its words are spelled with the vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/tokenizers/added_tokens.h"
#include "models/tokenizers/tokenizer.h"
#include "models/tokenizers/unicode_text.h"

namespace tessera::models {

class WordTokenizer : public Tokenizer {
 protected:
  // The fields that name the special tokens, with their default tokens.
  struct SpecialTokenFields {
    TokenNames::Field start, end, unknown, pad;
    std::optional<TokenNames::Field> mask;
  };
  // Sets the ids of special tokens and the lengths, and raises vocabulary_size_ to include the ids of added tokens.
  // Normalize must work at this point. Returns the errors of `names`, whose other configuration fields must have been
  // read before.
  absl::Status TakeTokens(TokenNames& names, const SpecialTokenFields& fields,
                          const std::function<std::optional<int64_t>(const std::string&)>& find,
                          const std::string& vocabulary_name);

  int64_t unknown_id() const { return unknown_id_; }

 private:
  absl::StatusOr<std::vector<PieceId>> Split(std::string_view utf8) const override;

  // Normalizes a part of the text. Its first byte has the offset `origin` in the whole text.
  virtual NormalizedText Normalize(std::string_view utf8, size_t origin) const = 0;
  // Appends the pieces of the bytes from begin to end; there may be none.
  virtual void SplitWords(const NormalizedText& text, size_t begin, size_t end, std::vector<PieceId>& pieces) const = 0;

  AddedTokenFinder original_finder_;
  AddedTokenFinder normalized_finder_;
  int64_t unknown_id_ = 0;
};

}  // namespace tessera::models
