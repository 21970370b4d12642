#include "models/tokenizers/t5_tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "models/tokenizers/tokenizer_folder.h"
#include "models/tokenizers/unigram_encoder.h"

namespace tessera::models {
namespace {

constexpr int64_t kMostSentinels = 10000;
constexpr int64_t kDefaultSentinels = 100;
constexpr char kSentinelPrefix[] = "<extra_id_";

// Returns N for <extra_id_N>; nothing for any other token.
std::optional<int64_t> SentinelNumber(const std::string& token) {
  int64_t number;
  if (!token.starts_with(kSentinelPrefix) || !token.ends_with('>')) return std::nullopt;
  const size_t begin = sizeof(kSentinelPrefix) - 1;
  const std::string digits = token.substr(begin, token.size() - 1 - begin);
  return absl::SimpleAtoi(digits, &number) && number >= 0 ? std::make_optional(number) : std::nullopt;
}

// Returns the number of sentinels in the vocabulary: the number of those listed, or the value of extra_ids.
int64_t CountSentinels(TokenNames& names, const std::set<std::string>& additional) {
  const int64_t listed = std::count_if(additional.begin(), additional.end(),
                                       [](const std::string& token) { return SentinelNumber(token).has_value(); });
  const int64_t stated = names.config().Int("extra_ids", listed > 0 ? listed : kDefaultSentinels, 0, kMostSentinels);
  if (listed > 0 && stated != listed) {
    names.config().AddError("extra_ids", absl::StrCat("additional_special_tokens lists ", listed, " of them"));
  }
  return stated;
}

}  // namespace

absl::StatusOr<T5Tokenizer> T5Tokenizer::Load(const std::string& path) {
  const TokenizerFolder folder(path);
  const std::string model_name = absl::StrCat(folder.component(), "/spiece.model");
  ASSIGN_OR_RETURN(const std::string bytes, folder.Read("spiece.model"));
  ASSIGN_OR_RETURN(SentencePieceModel model, SentencePieceModel::Parse(bytes, model_name));
  ASSIGN_OR_RETURN(const std::string config_json, folder.Read("tokenizer_config.json"));
  ASSIGN_OR_RETURN(const std::optional<std::string> map_json, folder.ReadIfThere("special_tokens_map.json"));
  ASSIGN_OR_RETURN(const std::optional<std::string> added_json, folder.ReadIfThere("added_tokens.json"));
  ASSIGN_OR_RETURN(TokenNames names, TokenNames::Parse(config_json, map_json, added_json, folder.component()));

  T5Tokenizer tokenizer(std::move(model));
  base::ConfigReader& config = names.config();
  config.Choice("tokenizer_class", "T5Tokenizer",
                {"T5Tokenizer", "T5TokenizerFast", "MT5Tokenizer", "MT5TokenizerFast"});
  tokenizer.TakeLengths(names);
  const bool splits_special = names.SplitsSpecialTokens();

  const int64_t pieces = tokenizer.model_.size();
  std::set<std::string> texts = names.AdditionalTokens();
  const int64_t sentinels = CountSentinels(names, texts);
  for (int64_t i = 0; i < sentinels; ++i) texts.insert(absl::StrCat(kSentinelPrefix, i, ">"));
  const std::string pad = names.Token("pad_token", "<pad>");
  const std::string end = names.Token("eos_token", "</s>");
  texts.insert({pad, end, names.Token("unk_token", "<unk>")});
  const std::set<std::string> named = texts;
  for (const auto& [text, token] : names.stated()) texts.insert(text);
  RETURN_IF_ERROR(config.status());

  tokenizer.vocabulary_size_ = pieces + sentinels;
  std::vector<AddedToken> tokens;
  for (const std::string& text : texts) {
    AddedToken token{.text = text, .special = true};
    std::optional<int64_t> id = tokenizer.model_.Find(text);
    if (const auto found = names.stated().find(text); found != names.stated().end()) {
      token = found->second;
      token.special = token.special || named.contains(text);
      id = token.id;
    } else if (const auto number = SentinelNumber(text); !id && number && *number < sentinels) {
      id = pieces + sentinels - 1 - *number;
    }
    if (!id) {
      return absl::InvalidArgumentError(absl::StrCat(config.name(), ": the special token ", base::Quote(text),
                                                     " is not a piece of ", model_name, " and has no id"));
    }
    token.id = *id;
    tokenizer.vocabulary_size_ = std::max(tokenizer.vocabulary_size_, *id + 1);
    if (text == pad) tokenizer.pad_id_ = *id;
    if (text == end) tokenizer.after_ = {*id};
    tokens.push_back(std::move(token));
  }
  tokenizer.finder_ = AddedTokenFinder(tokens, splits_special);
  return tokenizer;
}

absl::StatusOr<std::vector<PieceId>> T5Tokenizer::Split(std::string_view utf8) const {
  std::vector<PieceId> pieces;
  size_t plain_begin = 0;
  const auto encode_plain = [&](size_t plain_end) {
    for (PieceId piece : EncodeUnigram(model_, utf8.substr(plain_begin, plain_end - plain_begin))) {
      piece.begin += plain_begin;
      pieces.push_back(piece);
    }
  };
  for (const AddedTokenFinder::Match& match : finder_.Find(utf8)) {
    encode_plain(match.begin);
    pieces.push_back({match.id, match.begin});
    plain_begin = match.end;
  }
  encode_plain(utf8.size());
  return pieces;
}

}  // namespace tessera::models
