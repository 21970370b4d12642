// T5's tokenizer: a sentencepiece unigram model, "</s>" at the end, special tokens by their literal text.
//
// Which rule is followed where the reference's versions differ:
// - Characters the model does not know are spelled as bytes if the model has byte fallback (mT5), as sentencepiece and
//   the tokenizers with which the models were trained do; transformers 5 makes them <unk>.
// - The literal texts of special tokens (</s>, <pad>, <unk>, <extra_id_0>, …) become those tokens, as in every version
// of
//   transformers; sentencepiece alone would take them apart. The text between two of them is encoded on its own, with
//   its own dummy prefix.
// - Sentinels follow the pieces in reverse order: <extra_id_0> has the highest id. A file's added_tokens_decoder, where
//   it has one, is believed instead.
// Immutable after Load; Encode may be called from any number of threads.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/tokenizers/sentencepiece_model.h"

namespace tessera {

struct TokenIds {
  std::vector<int64_t> ids;              // "</s>" last; not padded
  int64_t tokens_before_truncation = 0;  // "</s>" included
  bool truncated = false;
  std::string cut_text;  // the part of the text that was cut off; empty if none was
};

class T5Tokenizer {
 public:
  // Reads spiece.model, tokenizer_config.json and, if there is one, special_tokens_map.json of a component's folder.
  // Errors name the files relative to the model, e.g. tokenizer/spiece.model.
  static absl::StatusOr<T5Tokenizer> Load(const std::string& folder);

  // InvalidArgument, naming `field`: invalid UTF-8, a NUL byte, max_length below 1. Time is linear in the text.
  absl::StatusOr<TokenIds> Encode(std::string_view utf8, int64_t max_length, const std::string& field = "prompt") const;

  int64_t pad_id() const { return pad_id_; }
  int64_t end_id() const { return end_id_; }
  // Ids are below this: pieces, sentinels and other added tokens. Embeddings may have more rows.
  int64_t vocabulary_size() const { return vocabulary_size_; }
  // As the files say it; the largest int64_t where they set no bound.
  int64_t model_max_length() const { return model_max_length_; }
  // The pieces by which a model with byte fallback spells unknown characters.
  bool IsByte(int64_t id) const { return id < model_.size() && model_.piece(id).type == PieceType::kByte; }

 private:
  struct SpecialToken {
    std::string text;
    int64_t id;
  };

  explicit T5Tokenizer(SentencePieceModel model) : model_(std::move(model)) {}

  // The special token that the text begins with, the longest if there are several; null if there is none.
  const SpecialToken* FindSpecialToken(std::string_view text) const;

  SentencePieceModel model_;
  std::vector<SpecialToken> special_tokens_;  // longest first
  std::array<bool, 256> begins_special_token_{};
  int64_t pad_id_ = 0;
  int64_t end_id_ = 0;
  int64_t vocabulary_size_ = 0;
  int64_t model_max_length_ = 0;
};

}  // namespace tessera
