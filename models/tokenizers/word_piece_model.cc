#include <utility>

#include "base/macros/status_macros.h"
#include "models/tokenizers/piece_model.h"
#include "models/tokenizers/tokenizer_parts.h"
#include "models/tokenizers/vocabulary_object.h"
#include "models/tokenizers/word_pieces.h"

namespace tessera::models {
namespace {

constexpr int64_t kLongestWord = 100000;  // characters

class WordPieceModel final : public PieceModel {
 public:
  WordPieceModel(TokenTable<int32_t> vocabulary, WordPieces pieces, std::string unknown_token)
      : vocabulary_(std::move(vocabulary)),
        pieces_(std::move(pieces)),
        unknown_token_(std::move(unknown_token)),
        unknown_id_(vocabulary_.find(unknown_token_)->second) {}

  const TokenTable<int32_t>& vocabulary() const override { return vocabulary_; }
  std::string_view unknown_token() const override { return unknown_token_; }

  void Encode(const NormalizedText& piece, std::vector<PieceId>& tokens) const override {
    std::vector<PairMerges::Piece> parts;
    pieces_.Encode(piece.text, unknown_id_, parts);
    for (const PairMerges::Piece& part : parts) tokens.push_back({part.id, piece.origins[part.begin]});
  }

 private:
  TokenTable<int32_t> vocabulary_;
  WordPieces pieces_;
  std::string unknown_token_;
  int32_t unknown_id_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PieceModel>> ReadWordPieceModel(TokenizerPart& part) {
  ASSIGN_OR_RETURN(TokenTable<int32_t> vocabulary, ReadVocabularyObject(part));
  RETURN_IF_ERROR(FindUnknown(part, vocabulary).status());
  std::string unknown_token = part.fields.RequiredString("unk_token");
  WordPieces pieces(part.fields.String("continuing_subword_prefix", "##"),
                    part.fields.Int("max_input_chars_per_word", 100, 1, kLongestWord));
  RETURN_IF_ERROR(part.fields.status());
  for (const auto& [text, id] : vocabulary) pieces.Add(text, id);
  return std::make_unique<WordPieceModel>(std::move(vocabulary), std::move(pieces), std::move(unknown_token));
}

}  // namespace tessera::models
