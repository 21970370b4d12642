#include "models/tokenizers/byte_pairs.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "models/tokenizers/byte_characters.h"
#include "models/tokenizers/tokenizer_folder.h"
#include "models/tokenizers/unicode_text.h"

namespace tessera::models {
namespace {

constexpr char kEndOfWord[] = "</w>";
constexpr std::string_view kVersionLine = "#version";
constexpr int32_t kNone = -1;

}  // namespace

absl::StatusOr<BytePairs> BytePairs::Parse(std::string_view vocab_json, std::string_view merges_txt,
                                           const std::string& component) {
  BytePairs pairs;
  const std::string vocabulary_name = absl::StrCat(component, "/vocab.json");
  RETURN_IF_ERROR(pairs.ReadVocabulary(vocab_json, vocabulary_name));
  const std::string merges_name = absl::StrCat(component, "/merges.txt");
  RETURN_IF_ERROR(pairs.ReadMerges(merges_txt, merges_name, vocabulary_name));
  return pairs;
}

absl::Status BytePairs::ReadVocabulary(std::string_view text, const std::string& name) {
  ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(text, name));
  const size_t count = json.members().size();
  if (count == 0 || count > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", json.Describe(), "; it is an object that gives every token its id"));
  }
  std::vector<const std::string*> tokens(count);
  for (const base::JsonMember& member : json.members()) {
    const std::optional<int64_t> id = member.value.AsInt();
    if (!id || *id < 0 || *id >= static_cast<int64_t>(count)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": the id of ", base::Quote(member.key), " is ",
                                                     member.value.Describe(), "; with ", count,
                                                     " tokens the ids are the whole numbers from 0 to ", count - 1));
    }
    if (const std::string* other = tokens[*id]) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", base::Quote(*other), " and ", base::Quote(member.key), " have the same id, ", *id));
    }
    tokens[*id] = &member.key;
    ids_.emplace(member.key, static_cast<int32_t>(*id));
  }
  const auto find = [this](const std::string& token) {
    const auto found = ids_.find(token);
    return found == ids_.end() ? kNone : found->second;
  };
  constexpr std::array<char32_t, 256> kCharacters = ByteCharacters();
  for (size_t byte = 0; byte < kCharacters.size(); ++byte) {
    NormalizedText character;
    character.Append({kCharacters[byte], 0});
    inner_ids_[byte] = find(character.text);
    last_ids_[byte] = find(character.text + kEndOfWord);
  }
  return absl::OkStatus();
}

absl::Status BytePairs::ReadMerges(std::string_view text, const std::string& name, const std::string& vocabulary_name) {
  int32_t line_number = 0;
  for (const std::string_view line : SplitLines(text)) {
    ++line_number;
    if (line.empty() || (line_number == 1 && line.starts_with(kVersionLine))) continue;
    const auto error = [&](const auto&... parts) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": line ", line_number, " ", parts...));
    };
    const size_t space = std::min(line.find(' '), line.size());
    const std::string_view left = line.substr(0, space);
    const std::string_view right = line.substr(std::min(space + 1, line.size()));
    if (left.empty() || right.empty() || right.find(' ') != right.npos) {
      return error("is ", base::Quote(line), "; every line has two tokens with one space between them");
    }
    for (const std::string_view token : {left, right}) {
      if (!ids_.contains(token))
        return error("joins ", base::Quote(token), ", which ", vocabulary_name, " does not have");
    }
    std::string joined(left);
    joined += right;
    const auto id = ids_.find(joined);
    if (id == ids_.end()) return error("makes ", base::Quote(joined), ", which ", vocabulary_name, " does not have");
    if (!merges_.Add(ids_.find(left)->second, ids_.find(right)->second, line_number, id->second)) {
      return error("repeats the merge ", base::Quote(line), " of a line above");
    }
  }
  return absl::OkStatus();
}

std::optional<int64_t> BytePairs::Find(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

void BytePairs::Encode(std::string_view word, int64_t unknown_id, std::vector<PairMerges::Piece>& pieces) const {
  pieces.clear();
  for (size_t i = 0; i < word.size(); ++i) {
    const auto byte = static_cast<unsigned char>(word[i]);
    const int32_t id = i + 1 == word.size() ? last_ids_[byte] : inner_ids_[byte];
    pieces.push_back({.id = id == kNone ? static_cast<int32_t>(unknown_id) : id, .begin = static_cast<int32_t>(i)});
  }
  merges_.Join(pieces);
}

}  // namespace tessera::models
