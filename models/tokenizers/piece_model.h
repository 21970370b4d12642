// PieceModel is the model of a tokenizer.json: it turns a piece of text from the pre-tokenizer into tokens. Immutable;
// Encode may be called from any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/tokenizers/token_table.h"
#include "models/tokenizers/tokenizer.h"
#include "models/tokenizers/unicode_text.h"

namespace tessera::models {

struct TokenizerPart;

class PieceModel {
 public:
  virtual ~PieceModel() = default;

  // Reads a BPE, Unigram or WordPiece model. Returns InvalidArgument, beginning with `name`, for another type, an
  // unsupported option, or an inconsistent vocabulary.
  static absl::StatusOr<std::unique_ptr<PieceModel>> Read(const base::Json* json, const std::string& name);

  virtual const TokenTable<int32_t>& vocabulary() const = 0;
  int64_t size() const;  // ids are below this
  // Number of entries of the vocabulary in the file, which may repeat a text or skip ids.
  virtual int64_t entries() const { return static_cast<int64_t>(vocabulary().size()); }

  // Appends the tokens of a non-empty piece.
  virtual void Encode(const NormalizedText& piece, std::vector<PieceId>& tokens) const = 0;

  // See Tokenizer.
  virtual void UseUnknownToken() {}
  // Makes unknown characters be spelled as bytes if the vocabulary has all of them.
  virtual void UseBytes() {}

  virtual std::string_view unknown_token() const = 0;  // "" if there is none
};

// Byte pair encoding: the characters of a piece are tokens, and pairs of tokens are joined.
absl::StatusOr<std::unique_ptr<PieceModel>> ReadBpeModel(TokenizerPart& part);

// Finds the most probable sequence of tokens for a piece of text. Unlike in a sentencepiece model, every token of the
// vocabulary can spell text, sums are rounded to double precision, and each piece from the pre-tokenizer is searched
// separately.
absl::StatusOr<std::unique_ptr<PieceModel>> ReadUnigramModel(TokenizerPart& part);

// Spells a piece with word pieces.
absl::StatusOr<std::unique_ptr<PieceModel>> ReadWordPieceModel(TokenizerPart& part);

}  // namespace tessera::models
