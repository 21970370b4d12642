// BertTokenizer implements BERT's tokenizer: the text is cleaned and cut at white space, punctuation and Chinese
// characters, and each word is spelled with the longest pieces of the vocabulary.
//
// The literal texts of special tokens, such as [SEP] or [MASK], become those tokens. Immutable; Encode may be called
// from any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/tokenizers/bert_text.h"
#include "models/tokenizers/word_pieces.h"
#include "models/tokenizers/word_tokenizer.h"

namespace tessera::models {

// The bytes of a tokenizer's files.
struct BertTokenizerFiles {
  std::string vocab_txt;
  std::string tokenizer_config_json;
  std::optional<std::string> special_tokens_map_json;
  std::optional<std::string> added_tokens_json;
};

class BertTokenizer final : public WordTokenizer {
 public:
  // Errors name the files relative to the model, e.g. tokenizer/vocab.txt.
  static absl::StatusOr<BertTokenizer> Load(const std::string& path);
  // `component` is the folder's name in those errors.
  static absl::StatusOr<BertTokenizer> Parse(const BertTokenizerFiles& files, const std::string& component);

 private:
  BertTokenizer();

  absl::Status ReadVocabulary(std::string_view text, const std::string& name);
  // Cleans the text and, depending on the files, puts Chinese characters between spaces, strips accents and lowers the
  // case.
  NormalizedText Normalize(std::string_view utf8, size_t origin) const override;
  void SplitWords(const NormalizedText& text, size_t begin, size_t end, std::vector<PieceId>& pieces) const override;

  WordPieces pieces_;
  BertCleaning cleaning_;
};

}  // namespace tessera::models
