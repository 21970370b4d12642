#include "models/tokenizers/tokenizer.h"

#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "models/tokenizers/bert_tokenizer.h"
#include "models/tokenizers/clip_tokenizer.h"
#include "models/tokenizers/json_tokenizer.h"
#include "models/tokenizers/t5_tokenizer.h"
#include "models/tokenizers/tokenizer_folder.h"
#include "models/tokenizers/unicode_text.h"
#include "models/weights/json.h"

namespace tessera {
namespace {

template <typename T>
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadAs(const std::string& folder) {
  absl::StatusOr<T> tokenizer = T::Load(folder);
  if (!tokenizer.ok()) return tokenizer.status();
  return std::make_unique<T>(*std::move(tokenizer));
}

struct TokenizerClass {
  std::string_view name;
  TokenizerKind kind;
  absl::StatusOr<std::unique_ptr<Tokenizer>> (*load)(const std::string& folder);  // null: only from a tokenizer.json
};

constexpr TokenizerClass kClasses[] = {
    {"BertTokenizer", TokenizerKind::kBert, LoadAs<BertTokenizer>},
    {"BertTokenizerFast", TokenizerKind::kBert, LoadAs<BertTokenizer>},
    {"CLIPTokenizer", TokenizerKind::kClip, LoadAs<ClipTokenizer>},
    {"CLIPTokenizerFast", TokenizerKind::kClip, LoadAs<ClipTokenizer>},
    {"GemmaTokenizer", TokenizerKind::kGemma, nullptr},
    {"GemmaTokenizerFast", TokenizerKind::kGemma, nullptr},
    {"MT5Tokenizer", TokenizerKind::kT5, LoadAs<T5Tokenizer>},
    {"MT5TokenizerFast", TokenizerKind::kT5, LoadAs<T5Tokenizer>},
    {"PreTrainedTokenizerFast", TokenizerKind::kOther, nullptr},
    {"Qwen2Tokenizer", TokenizerKind::kQwen2, nullptr},
    {"Qwen2TokenizerFast", TokenizerKind::kQwen2, nullptr},
    {"T5Tokenizer", TokenizerKind::kT5, LoadAs<T5Tokenizer>},
    {"T5TokenizerFast", TokenizerKind::kT5, LoadAs<T5Tokenizer>},
    {"TokenizersBackend", TokenizerKind::kOther, nullptr},
};

}  // namespace

absl::StatusOr<TokenIds> Tokenizer::Encode(std::string_view utf8, int64_t max_length, const std::string& field) const {
  const auto frame = static_cast<int64_t>(before_.size() + after_.size());
  if (max_length < frame) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": its maximum length is ", max_length, " tokens; it is at least ", frame,
                     before_.empty() ? ", for the end token" : ", for the start and the end token"));
  }
  if (absl::Status status = CheckText(utf8, field); !status.ok()) return status;

  absl::StatusOr<std::vector<PieceId>> split = Split(utf8);
  if (!split.ok()) {
    return absl::Status(split.status().code(), absl::StrCat(field, ": ", std::string(split.status().message())));
  }
  std::span<const PieceId> pieces = *split;
  TokenIds result;
  result.tokens_before_truncation = static_cast<int64_t>(pieces.size()) + frame;
  result.truncated = result.tokens_before_truncation > max_length;
  if (result.truncated) {
    const auto kept = static_cast<size_t>(max_length - frame);
    if (cuts_left_) {
      pieces = pieces.last(kept);
      result.cut_text = utf8.substr(0, kept == 0 ? utf8.size() : pieces.front().begin);
      absl::StripTrailingAsciiWhitespace(&result.cut_text);
    } else {
      result.cut_text = utf8.substr(pieces[kept].begin);
      absl::StripLeadingAsciiWhitespace(&result.cut_text);
      pieces = pieces.first(kept);
    }
  }
  result.ids.reserve(pieces.size() + static_cast<size_t>(frame));
  result.ids = before_;
  for (const PieceId& piece : pieces) result.ids.push_back(piece.id);
  result.ids.insert(result.ids.end(), after_.begin(), after_.end());
  return result;
}

void Tokenizer::TakeLengths(TokenNames& names) {
  model_max_length_ = names.ModelMaxLength();
  pads_left_ = names.config().Choice("padding_side", "right", {"right", "left"}) == "left";
  cuts_left_ = names.config().Choice("truncation_side", "right", {"right", "left"}) == "left";
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(std::string_view class_name, const std::string& folder) {
  std::string known;
  for (const TokenizerClass& entry : kClasses) {
    if (entry.name != class_name) {
      known.append(known.empty() ? "" : ", ").append(entry.name);
      continue;
    }
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = JsonTokenizer::LoadIfThere(entry.kind, folder);
    if (!tokenizer.ok() || *tokenizer != nullptr) return tokenizer;
    if (entry.load != nullptr) return entry.load(folder);
    return absl::NotFoundError(absl::StrCat(TokenizerFolder(folder).component(),
                                            "/tokenizer.json: there is no such file; a ", std::string(class_name),
                                            " is read from nothing else"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the tokenizer class ", Quote(class_name), " is not known; the known ones are ", known));
}

}  // namespace tessera
