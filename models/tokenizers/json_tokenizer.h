// JsonTokenizer implements a tokenizer in the format of the tokenizers library: tokenizer.json, together with
// tokenizer_config.json and, from older versions, special_tokens_map.json and added_tokens.json.
//
// A text is searched for added tokens. The parts between them are normalized, searched for the tokens that are searched
// in normalized text, and cut into pieces, and the model spells each piece. Every part is read from the file; an
// unsupported part is refused by name. Immutable; Encode may be called from any number of threads.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/tokenizers/added_tokens.h"
#include "models/tokenizers/piece_model.h"
#include "models/tokenizers/text_normalizer.h"
#include "models/tokenizers/text_splitter.h"
#include "models/tokenizers/tokenizer.h"

namespace tessera::models {

// The class of a tokenizer, which determines its tokens and padding side unless its files do.
enum class TokenizerKind { kBert, kClip, kGemma, kOther, kQwen2, kT5 };

// The bytes of a tokenizer's files.
struct JsonTokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
  std::optional<std::string> special_tokens_map_json;
  std::optional<std::string> added_tokens_json;
};

class JsonTokenizer final : public Tokenizer {
 public:
  // Returns null if the folder has no tokenizer.json. Errors name the files relative to the model, e.g.
  // tokenizer/tokenizer.json.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> LoadIfThere(TokenizerKind kind, const std::string& path);
  // `component` is the folder's name in those errors.
  static absl::StatusOr<JsonTokenizer> Parse(TokenizerKind kind, const JsonTokenizerFiles& files,
                                             const std::string& component);

  void UseUnknownToken() override { model_->UseUnknownToken(); }

 private:
  JsonTokenizer() = default;

  absl::Status ReadParts(const base::ConfigReader& file);
  // Takes padding and truncation from the configuration, else from the file, else from the class.
  absl::Status TakeSides(const base::ConfigReader& file, const base::ConfigReader& config, bool pads_left_by_class);
  // Returns the added tokens, each with its id, and sets the ids of padding and the size of the vocabulary.
  absl::StatusOr<std::vector<AddedToken>> TakeTokens(TokenizerKind kind, const base::ConfigReader& file,
                                                     TokenNames& names);
  absl::Status BuildFinders(const std::vector<AddedToken>& tokens, bool splits_special, const std::string& name);
  absl::StatusOr<std::vector<PieceId>> Split(std::string_view utf8) const override;
  // Splits the text between two added tokens. Its first byte has the offset `origin` in the whole text.
  absl::Status SplitPart(std::string_view utf8, size_t origin, std::vector<PieceId>& tokens) const;
  absl::Status EncodeText(std::vector<TracedChar> text, std::vector<PieceId>& tokens) const;

  TextNormalizer normalizer_;
  TextSplitter splitter_;
  std::unique_ptr<PieceModel> model_;
  AddedTokenFinder original_finder_, normalized_finder_;
};

}  // namespace tessera::models
