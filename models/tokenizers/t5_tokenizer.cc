#include "models/tokenizers/t5_tokenizer.h"

#include <unicode/utf8.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "models/tokenizers/unigram_encoder.h"
#include "models/weights/file.h"
#include "models/weights/json.h"

namespace tessera {
namespace {

constexpr size_t kMaxModelBytes = 64 << 20;
constexpr int64_t kMostSentinels = 10000;
constexpr int64_t kDefaultSentinels = 100;
constexpr char kSentinelPrefix[] = "<extra_id_";

// A special token is written as its text or as an object with the text in "content". Empty if it is neither.
std::string TokenText(const Json* value) {
  if (value == nullptr) return "";
  if (const std::string* text = value->AsString()) return *text;
  const Json* content = value->Find("content");
  return content != nullptr && content->AsString() != nullptr ? *content->AsString() : "";
}

// N of <extra_id_N>.
std::optional<int64_t> SentinelNumber(const std::string& token) {
  int64_t number;
  if (!token.starts_with(kSentinelPrefix) || !token.ends_with(">")) return std::nullopt;
  const size_t begin = sizeof(kSentinelPrefix) - 1;
  const std::string digits = token.substr(begin, token.size() - 1 - begin);
  return absl::SimpleAtoi(digits, &number) && number >= 0 ? std::make_optional(number) : std::nullopt;
}

// The files that name the special tokens.
class TokenNames {
 public:
  TokenNames(ConfigReader config, Json map) : config_(std::move(config)), map_(std::move(map)) {}

  ConfigReader& config() { return config_; }

  std::string Token(std::string_view key, std::string_view fallback) const {
    for (const Json* file : {&config_.json(), &map_}) {
      if (std::string text = TokenText(file->Find(key)); !text.empty()) return text;
    }
    return std::string(fallback);
  }

  std::set<std::string> AdditionalTokens() const {
    std::set<std::string> tokens;
    for (const Json* file : {&config_.json(), &map_}) {
      const Json* list = file->Find("additional_special_tokens");
      for (const Json& item : list != nullptr ? list->items() : std::span<const Json>()) {
        if (std::string text = TokenText(&item); !text.empty()) tokens.insert(std::move(text));
      }
    }
    return tokens;
  }

  // Ids that the config states itself.
  std::map<std::string, int64_t> StatedIds() {
    std::map<std::string, int64_t> ids;
    const Json* stated = config_.json().Find("added_tokens_decoder");
    for (const JsonMember& member : stated != nullptr ? stated->members() : std::span<const JsonMember>()) {
      int64_t id;
      const std::string text = TokenText(&member.value);
      if (!absl::SimpleAtoi(member.key, &id) || id < 0 || id > std::numeric_limits<int32_t>::max() || text.empty()) {
        config_.AddError("added_tokens_decoder", "every key is an id and every value has the token as its content");
        return {};
      }
      ids[text] = id;
    }
    return ids;
  }

 private:
  ConfigReader config_;
  Json map_;
};

absl::StatusOr<TokenNames> ReadTokenNames(const std::string& folder, const std::string& name) {
  absl::StatusOr<ConfigReader> config = ConfigReader::FromFile(absl::StrCat(folder, "/tokenizer_config.json"),
                                                               absl::StrCat(name, "/tokenizer_config.json"));
  if (!config.ok()) return config.status();
  const std::string map_name = absl::StrCat(name, "/special_tokens_map.json");
  absl::StatusOr<ConfigReader> map = ConfigReader::FromFile(absl::StrCat(folder, "/special_tokens_map.json"), map_name);
  if (absl::IsNotFound(map.status())) return TokenNames(*std::move(config), Json());
  if (!map.ok()) return map.status();
  return TokenNames(*std::move(config), map->json());
}

// Sentinels of the vocabulary: those listed, or as many as extra_ids says.
int64_t CountSentinels(TokenNames& names, const std::set<std::string>& additional) {
  const int64_t listed = std::count_if(additional.begin(), additional.end(),
                                       [](const std::string& token) { return SentinelNumber(token).has_value(); });
  const int64_t stated = names.config().Int("extra_ids", listed > 0 ? listed : kDefaultSentinels, 0, kMostSentinels);
  if (listed > 0 && stated != listed) {
    names.config().AddError("extra_ids", absl::StrCat("additional_special_tokens lists ", listed, " of them"));
  }
  return stated;
}

absl::Status CheckText(std::string_view utf8, const std::string& field) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(utf8.data());
  const auto size = static_cast<int64_t>(utf8.size());
  for (int64_t i = 0; i < size;) {
    const int64_t begin = i;
    UChar32 c;
    U8_NEXT(bytes, i, size, c);
    if (c < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": the text is not valid UTF-8 at byte ", begin, "; send it encoded as UTF-8"));
    }
    if (c == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": the text has a NUL character at byte ", begin, "; remove it"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<T5Tokenizer> T5Tokenizer::Load(const std::string& folder) {
  std::filesystem::path path(folder);
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = path.filename().string();
  const std::string model_name = absl::StrCat(name, "/spiece.model");
  absl::StatusOr<std::string> bytes = ReadWholeFile(absl::StrCat(folder, "/spiece.model"), model_name, kMaxModelBytes);
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<SentencePieceModel> model = SentencePieceModel::Parse(*bytes, model_name);
  if (!model.ok()) return model.status();
  absl::StatusOr<TokenNames> names = ReadTokenNames(folder, name);
  if (!names.ok()) return names.status();

  T5Tokenizer tokenizer(*std::move(model));
  ConfigReader& config = names->config();
  config.Choice("tokenizer_class", "T5Tokenizer",
                {"T5Tokenizer", "T5TokenizerFast", "MT5Tokenizer", "MT5TokenizerFast"});
  // Python writes "no limit" as an integer of 31 digits.
  const double max_length = config.Number("model_max_length", std::numeric_limits<double>::max(), 1);
  tokenizer.model_max_length_ =
      max_length < 0x1p62 ? static_cast<int64_t>(max_length) : std::numeric_limits<int64_t>::max();

  const int64_t pieces = tokenizer.model_.size();
  std::set<std::string> texts = names->AdditionalTokens();
  const int64_t sentinels = CountSentinels(*names, texts);
  for (int64_t i = 0; i < sentinels; ++i) texts.insert(absl::StrCat(kSentinelPrefix, i, ">"));
  const std::string pad = names->Token("pad_token", "<pad>");
  const std::string end = names->Token("eos_token", "</s>");
  texts.insert({pad, end, names->Token("unk_token", "<unk>")});
  const std::map<std::string, int64_t> stated = names->StatedIds();
  for (const auto& [text, id] : stated) texts.insert(text);
  if (absl::Status status = config.status(); !status.ok()) return status;

  tokenizer.vocabulary_size_ = pieces + sentinels;
  for (const std::string& text : texts) {
    std::optional<int64_t> id = tokenizer.model_.Find(text);
    if (const auto found = stated.find(text); found != stated.end()) {
      id = found->second;
    } else if (const auto number = SentinelNumber(text); !id && number && *number < sentinels) {
      id = pieces + sentinels - 1 - *number;
    }
    if (!id) {
      return absl::InvalidArgumentError(absl::StrCat(name, "/tokenizer_config.json: the special token ", Quote(text),
                                                     " is not a piece of ", model_name, " and has no id of its own"));
    }
    tokenizer.vocabulary_size_ = std::max(tokenizer.vocabulary_size_, *id + 1);
    tokenizer.special_tokens_.push_back({text, *id});
    tokenizer.begins_special_token_[static_cast<unsigned char>(text.front())] = true;
    if (text == pad) tokenizer.pad_id_ = *id;
    if (text == end) tokenizer.end_id_ = *id;
  }
  std::stable_sort(tokenizer.special_tokens_.begin(), tokenizer.special_tokens_.end(),
                   [](const SpecialToken& a, const SpecialToken& b) { return a.text.size() > b.text.size(); });
  return tokenizer;
}

const T5Tokenizer::SpecialToken* T5Tokenizer::FindSpecialToken(std::string_view text) const {
  if (!begins_special_token_[static_cast<unsigned char>(text.front())]) return nullptr;
  const auto found = std::find_if(special_tokens_.begin(), special_tokens_.end(),
                                  [text](const SpecialToken& token) { return text.starts_with(token.text); });
  return found == special_tokens_.end() ? nullptr : &*found;
}

absl::StatusOr<TokenIds> T5Tokenizer::Encode(std::string_view utf8, int64_t max_length,
                                             const std::string& field) const {
  if (max_length < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": its maximum length is ", max_length, " tokens; it is at least 1, for the end token"));
  }
  if (absl::Status status = CheckText(utf8, field); !status.ok()) return status;

  std::vector<PieceId> pieces;
  size_t plain_begin = 0;
  const auto encode_plain = [&](size_t plain_end) {
    for (PieceId piece : EncodeUnigram(model_, utf8.substr(plain_begin, plain_end - plain_begin))) {
      piece.begin += plain_begin;
      pieces.push_back(piece);
    }
  };
  for (size_t i = 0; i < utf8.size();) {
    const SpecialToken* const token = FindSpecialToken(utf8.substr(i));
    if (token == nullptr) {
      ++i;
      continue;
    }
    encode_plain(i);
    pieces.push_back({token->id, i});
    i += token->text.size();
    plain_begin = i;
  }
  encode_plain(utf8.size());

  TokenIds result;
  result.tokens_before_truncation = static_cast<int64_t>(pieces.size()) + 1;
  result.truncated = result.tokens_before_truncation > max_length;
  if (result.truncated) {
    const size_t kept = static_cast<size_t>(max_length - 1);
    result.cut_text = utf8.substr(pieces[kept].begin);
    absl::StripLeadingAsciiWhitespace(&result.cut_text);
    pieces.resize(kept);
  }
  for (const PieceId& piece : pieces) result.ids.push_back(piece.id);
  result.ids.push_back(end_id_);
  return result;
}

}  // namespace tessera
