#include "models/tokenizers/tokenizer.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "models/tokenizers/bert_tokenizer.h"
#include "models/tokenizers/clip_tokenizer.h"
#include "models/tokenizers/t5_tokenizer.h"
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
  absl::StatusOr<std::unique_ptr<Tokenizer>> (*load)(const std::string& folder);
};

constexpr TokenizerClass kClasses[] = {
    {"BertTokenizer", LoadAs<BertTokenizer>}, {"BertTokenizerFast", LoadAs<BertTokenizer>},
    {"CLIPTokenizer", LoadAs<ClipTokenizer>}, {"CLIPTokenizerFast", LoadAs<ClipTokenizer>},
    {"MT5Tokenizer", LoadAs<T5Tokenizer>},    {"MT5TokenizerFast", LoadAs<T5Tokenizer>},
    {"T5Tokenizer", LoadAs<T5Tokenizer>},     {"T5TokenizerFast", LoadAs<T5Tokenizer>},
};

}  // namespace

absl::StatusOr<TokenIds> Tokenizer::Encode(std::string_view utf8, int64_t max_length, const std::string& field) const {
  const int64_t frame = start_id_ ? 2 : 1;
  if (max_length < frame) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": its maximum length is ", max_length, " tokens; it is at least ", frame,
                     start_id_ ? ", for the start and the end token" : ", for the end token"));
  }
  if (absl::Status status = CheckText(utf8, field); !status.ok()) return status;

  std::vector<PieceId> pieces = Split(utf8);
  TokenIds result;
  result.tokens_before_truncation = static_cast<int64_t>(pieces.size()) + frame;
  result.truncated = result.tokens_before_truncation > max_length;
  if (result.truncated) {
    const size_t kept = static_cast<size_t>(max_length - frame);
    result.cut_text = utf8.substr(pieces[kept].begin);
    absl::StripLeadingAsciiWhitespace(&result.cut_text);
    pieces.resize(kept);
  }
  result.ids.reserve(pieces.size() + frame);
  if (start_id_) result.ids.push_back(*start_id_);
  for (const PieceId& piece : pieces) result.ids.push_back(piece.id);
  result.ids.push_back(end_id_);
  return result;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(std::string_view class_name, const std::string& folder) {
  std::string known;
  for (const TokenizerClass& entry : kClasses) {
    if (entry.name == class_name) return entry.load(folder);
    known.append(known.empty() ? "" : ", ").append(entry.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the tokenizer class ", Quote(class_name), " is not known; the known ones are ", known));
}

}  // namespace tessera
