// What CLIP's and BERT's tokenizers have in common: special tokens are taken out of the text, the rest is normalized,
// and words of it are spelled with the vocabulary.
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
  // The fields that name the special tokens, with the tokens that they name if no file says otherwise.
  struct SpecialTokenFields {
    TokenNames::Field start, end, unknown, pad;
    std::optional<TokenNames::Field> mask;
  };
  // Sets the ids of special tokens and what is said of lengths, raises vocabulary_size_ to the ids of added tokens.
  // Normalize works already. Errors as of `names`, whose config has been read apart from that.
  absl::Status TakeTokens(TokenNames& names, const SpecialTokenFields& fields,
                          const std::function<std::optional<int64_t>(const std::string&)>& find,
                          const std::string& vocabulary_name);

  int64_t unknown_id() const { return unknown_id_; }

 private:
  absl::StatusOr<std::vector<PieceId>> Split(std::string_view utf8) const override;

  // Of a part of the text, whose first byte has the offset `origin` in the whole.
  virtual NormalizedText Normalize(std::string_view utf8, size_t origin) const = 0;
  // Appends the pieces of the bytes from begin to end, which may be none.
  virtual void SplitWords(const NormalizedText& text, size_t begin, size_t end, std::vector<PieceId>& pieces) const = 0;

  AddedTokenFinder original_finder_;
  AddedTokenFinder normalized_finder_;
  int64_t unknown_id_ = 0;
};

}  // namespace tessera::models
