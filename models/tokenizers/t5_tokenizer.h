// T5Tokenizer implements T5's tokenizer: a sentencepiece unigram model, "</s>" at the end, and special tokens by their
// literal text.
//
// Where the reference's versions differ, it follows these rules:
// - Characters that the model does not know are spelled as bytes if the model has byte fallback (mT5), as by
//   sentencepiece and by the tokenizers with which the models were trained; transformers 5 makes them <unk>, as this
//   class does after UseUnknownToken().
// - The literal texts of special tokens (</s>, <pad>, <unk>, <extra_id_0>, …) become those tokens, as in every version
//   of transformers; sentencepiece alone would split them. The text between two of them is encoded separately, with
//   a separate dummy prefix.
// - Sentinels follow the pieces in reverse order: <extra_id_0> has the highest id. If a file has an
//   added_tokens_decoder, that takes precedence.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/tokenizers/added_tokens.h"
#include "models/tokenizers/sentencepiece_model.h"
#include "models/tokenizers/tokenizer.h"

namespace tessera::models {

class T5Tokenizer final : public Tokenizer {
 public:
  // Reads spiece.model, tokenizer_config.json and, if it exists, special_tokens_map.json of a component's folder.
  // Errors name the files relative to the model, e.g. tokenizer/spiece.model.
  static absl::StatusOr<T5Tokenizer> Load(const std::string& path);

  void UseUnknownToken() override { model_.DropByteFallback(); }

 private:
  explicit T5Tokenizer(SentencePieceModel model) : model_(std::move(model)) {}
  absl::StatusOr<std::vector<PieceId>> Split(std::string_view utf8) const override;

  SentencePieceModel model_;
  AddedTokenFinder finder_;
};

}  // namespace tessera::models
