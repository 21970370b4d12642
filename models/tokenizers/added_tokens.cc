#include "models/tokenizers/added_tokens.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "models/tokenizers/newer_characters.h"
#include "models/tokenizers/unicode_text.h"

namespace tessera::models {
namespace {

constexpr size_t kMostStated = 100000;

// Reads a token, which is written as its text or as an object with the text in "content". Returns nothing for anything
// else.
std::optional<AddedToken> ReadToken(const base::Json* value) {
  if (value == nullptr) return std::nullopt;
  AddedToken token;
  if (const std::string* text = value->AsString()) {
    token.text = *text;
  } else if (const base::Json* content = value->Find("content"); content != nullptr && content->AsString() != nullptr) {
    token.text = *content->AsString();
    const auto flag = [value](std::string_view key) {
      const base::Json* found = value->Find(key);
      return found != nullptr && found->AsBool().value_or(false);
    };
    token.strips_left = flag("lstrip");
    token.strips_right = flag("rstrip");
    token.single_word = flag("single_word");
    token.normalized = flag("normalized");
    token.special = flag("special");
  }
  if (token.text.empty()) return std::nullopt;
  return token;
}

// Whether the character is a word character in regular expressions.
bool IsWordCharacter(UChar32 c) {
  constexpr uint32_t kMask = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  if (u_isUAlphabetic(c) || (U_GET_GC_MASK(c) & kMask) != 0 || u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL)) return true;
  const auto is_newer = [c](char category) { return IsNewerCharacter(static_cast<char32_t>(c), category); };
  return is_newer('L') || is_newer('M') || is_newer('N');
}

UChar32 CharacterBefore(std::string_view text, size_t position, size_t* begin) {
  auto i = static_cast<int64_t>(position);
  do {
    --i;
  } while (i > 0 && U8_IS_TRAIL(static_cast<uint8_t>(text[i])));
  *begin = static_cast<size_t>(i);
  UChar32 c;
  U8_NEXT(reinterpret_cast<const uint8_t*>(text.data()), i, static_cast<int64_t>(position), c);
  return c;
}

UChar32 CharacterAt(std::string_view text, size_t position, size_t* end) {
  auto i = static_cast<int64_t>(position);
  UChar32 c;
  U8_NEXT(reinterpret_cast<const uint8_t*>(text.data()), i, static_cast<int64_t>(text.size()), c);
  *end = static_cast<size_t>(i);
  return c;
}

bool StandsAlone(std::string_view text, size_t begin, size_t end) {
  size_t ignored;
  return (begin == 0 || !IsWordCharacter(CharacterBefore(text, begin, &ignored))) &&
         (end == text.size() || !IsWordCharacter(CharacterAt(text, end, &ignored)));
}

size_t SkipWhiteSpaceBack(std::string_view text, size_t lowest, size_t end) {
  for (size_t next; end > lowest && IsWhiteSpace(CharacterBefore(text, end, &next));) end = next;
  return end;
}

size_t SkipWhiteSpace(std::string_view text, size_t begin) {
  for (size_t next; begin < text.size() && IsWhiteSpace(CharacterAt(text, begin, &next));) begin = next;
  return begin;
}

}  // namespace

absl::StatusOr<TokenNames> TokenNames::Parse(std::string_view config_json, const std::optional<std::string>& map_json,
                                             const std::optional<std::string>& added_json,
                                             const std::string& component) {
  absl::StatusOr<base::ConfigReader> config =
      base::ConfigReader::FromText(config_json, absl::StrCat(component, "/tokenizer_config.json"));
  if (!config.ok()) return config.status();
  TokenNames names(*std::move(config));
  names.stated_by_ = absl::StrCat(names.config_.name(), ": added_tokens_decoder");
  names.ReadStated();
  if (map_json) {
    const absl::StatusOr<base::ConfigReader> map =
        base::ConfigReader::FromText(*map_json, absl::StrCat(component, "/special_tokens_map.json"));
    if (!map.ok()) return map.status();
    if (names.stated_.empty()) names.files_.push_back(map->json());
  }
  names.files_.push_back(names.config_.json());
  if (added_json) {
    RETURN_IF_ERROR(names.ReadAddedFile(*added_json, absl::StrCat(component, "/added_tokens.json")));
  }
  return names;
}

// Reads an object that maps every token to its id.
absl::Status TokenNames::ReadAddedFile(const std::string& json, const std::string& name) {
  ASSIGN_OR_RETURN(const base::Json added, base::ParseJson(json, name));
  if (!added.is_object() || added.members().size() > kMostStated) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", added.Describe(), "; it is an object of at most ",
                                                   kMostStated, " members that gives every token its id"));
  }
  const bool may_add = config_.json().Find("added_tokens_decoder") == nullptr;
  if (may_add) stated_by_ = name;
  const std::set<std::string> named = NamedTokens();
  std::set<int64_t> ids;
  for (const base::JsonMember& member : added.members()) {
    const std::optional<int64_t> id = member.value.AsInt();
    if (member.key.empty() || !id || *id < 0 || *id > std::numeric_limits<int32_t>::max() || !ids.insert(*id).second) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": the id of ", base::Quote(member.key), " is ",
                                                     member.value.Describe(),
                                                     "; each token must have a different id from 0 on"));
    }
    const auto stated = stated_.find(member.key);
    if (may_add) {
      const bool special = named.contains(member.key);
      stated_.emplace(member.key,
                      AddedToken{.text = member.key, .id = *id, .normalized = !special, .special = special});
    } else if (stated == stated_.end() || stated->second.id != *id) {
      return absl::InvalidArgumentError(absl::StrCat(name, " gives ", base::Quote(member.key), " the id ", *id,
                                                     ", which the added_tokens_decoder of ", config_.name(),
                                                     stated == stated_.end() ? " does not have" : " gives another one",
                                                     "; make the two files agree"));
    }
  }
  return absl::OkStatus();
}

void TokenNames::ReadStated() {
  const base::Json* stated = config_.json().Find("added_tokens_decoder");
  if (stated == nullptr) return;
  std::set<int64_t> ids;
  for (const base::JsonMember& member : stated->members()) {
    std::optional<AddedToken> token = ReadToken(&member.value);
    int64_t id;
    if (!token || !absl::SimpleAtoi(member.key, &id) || id < 0 || id > std::numeric_limits<int32_t>::max()) {
      config_.AddError("added_tokens_decoder", "every key is an id and every value has the token as its content");
      return;
    }
    token->id = id;
    const std::string text = token->text;
    if (!ids.insert(id).second || !stated_.emplace(text, *std::move(token)).second) {
      config_.AddError("added_tokens_decoder", "every id and every content appears once");
      return;
    }
    if (stated_.size() > kMostStated) {
      config_.AddError("added_tokens_decoder", absl::StrCat("it has at most ", kMostStated, " members"));
      return;
    }
  }
}

int64_t TokenNames::ModelMaxLength() {
  const double length = config_.Number("model_max_length", std::numeric_limits<double>::max(), 1);
  return length < 0x1p62 ? static_cast<int64_t>(length) : std::numeric_limits<int64_t>::max();
}

bool TokenNames::SplitsSpecialTokens() { return config_.Bool("split_special_tokens", false); }

std::string TokenNames::Token(std::string_view key, std::string_view fallback) const {
  for (const base::Json& file : files_) {
    if (std::optional<AddedToken> token = ReadToken(file.Find(key))) return token->text;
  }
  return std::string(fallback);
}

std::set<std::string> TokenNames::AdditionalTokens() const {
  std::set<std::string> tokens;
  for (const base::Json& file : files_) {
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
      const base::Json* list = file.Find(key);
      if (list == nullptr) continue;
      for (const base::Json& item : list->items()) {
        if (std::optional<AddedToken> token = ReadToken(&item)) tokens.insert(std::move(token->text));
      }
      for (const base::JsonMember& member : list->members()) {
        if (std::optional<AddedToken> token = ReadToken(&member.value)) tokens.insert(std::move(token->text));
      }
    }
  }
  return tokens;
}

std::set<std::string> TokenNames::NamedTokens() const {
  std::set<std::string> tokens = AdditionalTokens();
  for (const base::Json& file : files_) {
    for (const base::JsonMember& member : file.members()) {
      if (!member.key.ends_with("_token")) continue;
      if (std::optional<AddedToken> token = ReadToken(&member.value)) tokens.insert(std::move(token->text));
    }
  }
  return tokens;
}

absl::StatusOr<std::vector<AddedToken>> TokenNames::Resolve(
    std::span<const Field> fields, const std::function<std::optional<int64_t>(const std::string&)>& find,
    const std::string& vocabulary_name) const {
  // If several fields name a token, the last of them determines its properties, unless the files give its id.
  std::map<std::string, AddedToken> tokens;
  for (const Field& field : fields) {
    std::optional<AddedToken> token;
    for (const base::Json& file : files_) {
      if (!token) token = ReadToken(file.Find(field.key));
    }
    if (!token) {
      token = AddedToken{.text = std::string(field.fallback)};
      if (!field.required && !stated_.contains(token->text) && !find(token->text)) continue;
    }
    token->special = true;
    tokens.insert_or_assign(token->text, *token);
  }
  for (const std::string& text : AdditionalTokens()) tokens.emplace(text, AddedToken{.text = text, .special = true});
  for (const auto& [text, token] : stated_) {
    AddedToken& known = tokens[text];
    const bool special = known.special || token.special;
    known = token;
    known.special = special;
  }

  std::vector<AddedToken> result;
  for (auto& [text, token] : tokens) {
    const std::optional<int64_t> id = find(text);
    const bool is_stated = stated_.contains(text);
    if (!id && !is_stated) {
      return absl::InvalidArgumentError(absl::StrCat(config_.name(), ": the special token ", base::Quote(text),
                                                     " is not in ", vocabulary_name,
                                                     ", and added_tokens_decoder gives it no id"));
    }
    if (id && is_stated && *id != token.id) {
      return absl::InvalidArgumentError(absl::StrCat(stated_by_, " gives ", base::Quote(text), " the id ", token.id,
                                                     "; in ", vocabulary_name, " it is ", *id));
    }
    if (id) token.id = *id;
    result.push_back(token);
  }
  return result;
}

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens, bool splits_special)
    : splits_special_(splits_special) {
  std::set<size_t, std::greater<>> lengths;
  for (const AddedToken& token : tokens) {
    tokens_.emplace(token.text, token);
    lengths.insert(token.text.size());
    begins_token_[static_cast<unsigned char>(token.text.front())] = true;
  }
  lengths_.assign(lengths.begin(), lengths.end());
}

const AddedToken* AddedTokenFinder::LongestAt(std::string_view text) const {
  if (!begins_token_[static_cast<unsigned char>(text.front())]) return nullptr;
  for (const size_t length : lengths_) {
    if (length > text.size()) continue;
    const auto found = tokens_.find(text.substr(0, length));
    if (found != tokens_.end()) return &found->second;
  }
  return nullptr;
}

std::vector<AddedTokenFinder::Match> AddedTokenFinder::Find(std::string_view utf8) const {
  std::vector<Match> matches;
  size_t free_begin = 0;  // end of the last match
  for (size_t i = 0; i < utf8.size();) {
    const AddedToken* const token = LongestAt(utf8.substr(i));
    if (token == nullptr) {
      ++i;
      continue;
    }
    size_t begin = i;
    i += token->text.size();
    if (splits_special_ && token->special) continue;
    if (token->single_word && !StandsAlone(utf8, begin, i)) continue;
    if (token->strips_left) begin = SkipWhiteSpaceBack(utf8, free_begin, begin);
    if (token->strips_right) i = SkipWhiteSpace(utf8, i);
    matches.push_back({begin, i, token->id});
    free_begin = i;
  }
  return matches;
}

}  // namespace tessera::models
