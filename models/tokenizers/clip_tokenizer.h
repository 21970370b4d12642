// ClipTokenizer implements CLIP's tokenizer: the text is normalized, lowered and cut into words by a pattern, and each
// word is split by byte pair encoding.
//
// As in the reference (and unlike the first implementation of CLIP), mojibake and HTML entities are left unchanged, and
// the literal texts of special tokens become those tokens: <|endoftext|> always, "!" if it is the padding token.
// Special tokens are searched for before normalization, so that their case matters, unless the files say otherwise.
// Immutable; Encode may be called from any number of threads.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/tokenizers/byte_pairs.h"
#include "models/tokenizers/word_tokenizer.h"

namespace tessera::models {

// The bytes of a tokenizer's files.
struct ClipTokenizerFiles {
  std::string vocab_json;
  std::string merges_txt;
  std::string tokenizer_config_json;
  std::optional<std::string> special_tokens_map_json;
  std::optional<std::string> added_tokens_json;
};

class ClipTokenizer final : public WordTokenizer {
 public:
  // Errors name the files relative to the model, e.g. tokenizer/vocab.json.
  static absl::StatusOr<ClipTokenizer> Load(const std::string& path);
  // `component` is the folder's name in those errors.
  static absl::StatusOr<ClipTokenizer> Parse(const ClipTokenizerFiles& files, const std::string& component);

 private:
  explicit ClipTokenizer(BytePairs pairs) : pairs_(std::move(pairs)) {}

  NormalizedText Normalize(std::string_view utf8, size_t origin) const override;
  void SplitWords(const NormalizedText& text, size_t begin, size_t end, std::vector<PieceId>& pieces) const override;

  BytePairs pairs_;
};

}  // namespace tessera::models
