#include "models/tokenizers/tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/files/path_state.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "models/tokenizers/bert_tokenizer.h"
#include "models/tokenizers/clip_tokenizer.h"
#include "models/tokenizers/json_tokenizer.h"
#include "models/tokenizers/stored_tokenizer.h"
#include "models/tokenizers/t5_tokenizer.h"
#include "models/tokenizers/tokenizer_folder.h"
#include "models/tokenizers/unicode_text.h"

namespace tessera::models {
namespace {

template <typename T>
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadAs(const std::string& folder) {
  ASSIGN_OR_RETURN(T tokenizer, T::Load(folder));
  return std::make_unique<T>(std::move(tokenizer));
}

struct TokenizerClass {
  std::string_view name;
  TokenizerKind kind;
  absl::StatusOr<std::unique_ptr<Tokenizer>> (*load)(const std::string& folder);  // null: only from a tokenizer.json
  std::array<std::string_view, 2> vocabulary;                                     // the files that only `load` reads
};

constexpr TokenizerClass kClasses[] = {
    {"BertTokenizer", TokenizerKind::kBert, LoadAs<BertTokenizer>, {"vocab.txt"}},
    {"BertTokenizerFast", TokenizerKind::kBert, LoadAs<BertTokenizer>, {"vocab.txt"}},
    {"CLIPTokenizer", TokenizerKind::kClip, LoadAs<ClipTokenizer>, {"vocab.json", "merges.txt"}},
    {"CLIPTokenizerFast", TokenizerKind::kClip, LoadAs<ClipTokenizer>, {"vocab.json", "merges.txt"}},
    {"GemmaTokenizer", TokenizerKind::kGemma, nullptr, {}},
    {"GemmaTokenizerFast", TokenizerKind::kGemma, nullptr, {}},
    {"MT5Tokenizer", TokenizerKind::kT5, LoadAs<T5Tokenizer>, {"spiece.model"}},
    {"MT5TokenizerFast", TokenizerKind::kT5, LoadAs<T5Tokenizer>, {"spiece.model"}},
    {"PixtralProcessor", TokenizerKind::kOther, nullptr, {}},  // of the tokenizer and of pictures
    {"PreTrainedTokenizerFast", TokenizerKind::kOther, nullptr, {}},
    {"Qwen2Tokenizer", TokenizerKind::kQwen2, nullptr, {}},
    {"Qwen2TokenizerFast", TokenizerKind::kQwen2, nullptr, {}},
    {"T5Tokenizer", TokenizerKind::kT5, LoadAs<T5Tokenizer>, {"spiece.model"}},
    {"T5TokenizerFast", TokenizerKind::kT5, LoadAs<T5Tokenizer>, {"spiece.model"}},
    {"TokenizersBackend", TokenizerKind::kOther, nullptr, {}},
};

}  // namespace

absl::StatusOr<TokenIds> Tokenizer::Encode(std::string_view utf8, int64_t max_length, const std::string& field) const {
  return EncodeIn(before_, after_, utf8, max_length, field);
}

absl::StatusOr<TokenIds> Tokenizer::EncodeBare(std::string_view utf8, int64_t max_length,
                                               const std::string& field) const {
  return EncodeIn({}, {}, utf8, max_length, field);
}

absl::StatusOr<TokenIds> Tokenizer::EncodeIn(const std::vector<int64_t>& before, const std::vector<int64_t>& after,
                                             std::string_view utf8, int64_t max_length,
                                             const std::string& field) const {
  const auto frame = static_cast<int64_t>(before.size() + after.size());
  if (max_length < frame) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": its maximum length is ", max_length, " tokens; it is at least ", frame,
                     before.empty() ? ", for the end token" : ", for the start and the end token"));
  }
  RETURN_IF_ERROR(CheckText(utf8, field));

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
  result.ids = before;
  for (const PieceId& piece : pieces) result.ids.push_back(piece.id);
  result.ids.insert(result.ids.end(), after.begin(), after.end());
  return result;
}

void Tokenizer::TakeLengths(TokenNames& names) {
  model_max_length_ = names.ModelMaxLength();
  pads_left_ = names.config().Choice("padding_side", "right", {"right", "left"}) == "left";
  cuts_left_ = names.config().Choice("truncation_side", "right", {"right", "left"}) == "left";
}

std::vector<std::string> TokenizerFiles(std::string_view class_name, const std::string& folder) {
  if (base::IsFile(folder)) return {std::filesystem::path(folder).filename().string()};
  const auto entry =
      std::find_if(std::begin(kClasses), std::end(kClasses),
                   [class_name](const TokenizerClass& candidate) { return candidate.name == class_name; });
  if (entry == std::end(kClasses)) return {};
  const auto exists = [&](const std::string& file) { return std::filesystem::exists(absl::StrCat(folder, "/", file)); };
  std::vector<std::string> wanted = {"tokenizer.json"};
  if (!exists("tokenizer.json")) wanted.assign(entry->vocabulary.begin(), entry->vocabulary.end());
  wanted.insert(wanted.end(), {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"});
  std::erase_if(wanted, [&](const std::string& file) { return file.empty() || !exists(file); });
  return wanted;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(std::string_view class_name, const std::string& folder) {
  std::string known;
  for (const TokenizerClass& entry : kClasses) {
    if (entry.name != class_name) {
      known.append(known.empty() ? "" : ", ").append(entry.name);
      continue;
    }
    if (base::IsFile(folder)) {
      ASSIGN_OR_RETURN(const JsonTokenizerFiles files, ReadStoredTokenizer(folder));
      ASSIGN_OR_RETURN(JsonTokenizer stored,
                       JsonTokenizer::Parse(entry.kind, files, std::filesystem::path(folder).filename().string()));
      return std::make_unique<JsonTokenizer>(std::move(stored));
    }
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = JsonTokenizer::LoadIfThere(entry.kind, folder);
    if (!tokenizer.ok() || *tokenizer != nullptr) return tokenizer;
    if (entry.load != nullptr) return entry.load(folder);
    return absl::NotFoundError(absl::StrCat(TokenizerFolder(folder).component(),
                                            "/tokenizer.json: there is no such file; a ", std::string(class_name),
                                            " is read from this file only"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the tokenizer class ", base::Quote(class_name), " is not known; the known ones are ", known));
}

}  // namespace tessera::models
