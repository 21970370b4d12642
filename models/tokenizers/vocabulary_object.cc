#include "models/tokenizers/vocabulary_object.h"

#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace tessera::models {
namespace {

constexpr int64_t kHighestId = (1 << 24) - 1;

}  // namespace

absl::StatusOr<TokenTable<int32_t>> ReadVocabularyObject(TokenizerPart& part) {
  const base::Json* const json = part.fields.json().Find("vocab");
  if (json == nullptr || json->members().empty()) {
    return part.Refuse("the field \"vocab\" is an object that gives every token its id");
  }
  part.fields.Ignore({"vocab"});
  TokenTable<int32_t> vocabulary;
  absl::flat_hash_set<int64_t> ids;
  for (const base::JsonMember& member : json->members()) {
    const std::optional<int64_t> id = member.value.AsInt();
    if (!id || *id < 0 || *id > kHighestId) {
      return part.Refuse(absl::StrCat("the id of ", base::Quote(member.key), " is ", member.value.Describe(),
                                      "; valid values are 0 to ", kHighestId));
    }
    if (!ids.insert(*id).second) {
      return part.Refuse(absl::StrCat("two tokens have the id ", *id, ", one of them ", base::Quote(member.key)));
    }
    vocabulary.emplace(member.key, static_cast<int32_t>(*id));
  }
  return vocabulary;
}

absl::StatusOr<std::optional<int32_t>> FindUnknown(TokenizerPart& part, const TokenTable<int32_t>& vocabulary) {
  if (!part.fields.Has("unk_token")) {
    part.fields.Ignore({"unk_token"});
    return std::nullopt;
  }
  const std::string text = part.fields.RequiredString("unk_token");
  const auto found = vocabulary.find(text);
  if (found == vocabulary.end()) {
    return part.Refuse(absl::StrCat("the unknown token ", base::Quote(text), " is not in the vocabulary"));
  }
  return found->second;
}

}  // namespace tessera::models
