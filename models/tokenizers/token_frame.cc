#include "models/tokenizers/token_frame.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "models/tokenizers/tokenizer_parts.h"

namespace tessera::models {
namespace {

constexpr size_t kMostTokens = 64;  // of a frame

// Reads a field that is [TEXT, ID].
absl::StatusOr<int64_t> ReadPair(TokenizerPart& part, const char* key) {
  const base::Json* const pair = part.fields.json().Find(key);
  part.fields.Ignore({key});
  const std::optional<int64_t> id =
      pair != nullptr && pair->items().size() == 2 ? pair->items()[1].AsInt() : std::nullopt;
  if (!id || *id < 0) return part.Refuse(absl::StrCat("the field \"", key, "\" is a list of a token and its id"));
  return *id;
}

// Reads a frame of start token, text, end token.
absl::StatusOr<TokenFrame> ReadStartAndEnd(TokenizerPart& part) {
  part.fields.Ignore({"trim_offsets", "add_prefix_space"});
  ASSIGN_OR_RETURN(const int64_t start, ReadPair(part, "cls"));
  ASSIGN_OR_RETURN(const int64_t end, ReadPair(part, "sep"));
  return TokenFrame{.before = {start}, .after = {end}};
}

// Appends the tokens of {"id": TEXT, …}, looked up in the template's table of tokens.
absl::Status AppendTokens(TokenizerPart& part, const base::Json& piece, std::vector<int64_t>& tokens) {
  const base::Json* const text = piece.Find("id");
  const base::Json* const table = part.fields.json().Find("special_tokens");
  const base::Json* const entry =
      text == nullptr || text->AsString() == nullptr || table == nullptr ? nullptr : table->Find(*text->AsString());
  const base::Json* const ids = entry == nullptr ? nullptr : entry->Find("ids");
  if (ids == nullptr) return part.Refuse("the template has a token without ids in \"special_tokens\"");
  for (const base::Json& id : ids->items()) {
    if (id.AsInt().value_or(-1) < 0) return part.Refuse("an id of \"special_tokens\" is not a whole number from 0 on");
    tokens.push_back(*id.AsInt());
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenFrame> ReadTemplate(TokenizerPart& part) {
  const base::Json* const pieces = part.fields.json().Find("single");
  part.fields.Ignore({"single", "pair", "special_tokens"});
  TokenFrame frame;
  int texts = 0;
  for (const base::Json& piece : pieces == nullptr ? std::span<const base::Json>() : pieces->items()) {
    const base::Json* const sequence = piece.Find("Sequence");
    const base::Json* const token = piece.Find("SpecialToken");
    if (sequence != nullptr && sequence->Find("id") != nullptr && sequence->Find("id")->AsString() != nullptr &&
        *sequence->Find("id")->AsString() == "A") {
      ++texts;
    } else if (token != nullptr) {
      RETURN_IF_ERROR(AppendTokens(part, *token, texts == 0 ? frame.before : frame.after));
    } else {
      return part.Refuse("the template \"single\" has a piece that is neither the text A nor a token");
    }
  }
  if (texts != 1)
    return part.Refuse(absl::StrCat("the template \"single\" has the text ", texts, " times; it must have it once"));
  return frame;
}

}  // namespace

absl::StatusOr<TokenFrame> ReadTokenFrame(const base::Json* json, const std::string& name) {
  ASSIGN_OR_RETURN(std::vector<TokenizerPart> parts, ReadParts(json, name, "processors"));
  TokenFrame frame;
  for (TokenizerPart& part : parts) {
    absl::StatusOr<TokenFrame> outer = TokenFrame{};
    if (part.type == "BertProcessing" || part.type == "RobertaProcessing") {
      outer = ReadStartAndEnd(part);
    } else if (part.type == "TemplateProcessing") {
      outer = ReadTemplate(part);
    } else if (part.type == "ByteLevel") {
      part.fields.Ignore({"add_prefix_space", "trim_offsets", "use_regex"});  // they affect only offsets
    } else {
      return UnknownPart(part, {"BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"});
    }
    if (!outer.ok()) return outer.status();
    RETURN_IF_ERROR(part.Finish());
    frame.before.insert(frame.before.begin(), outer->before.begin(), outer->before.end());
    frame.after.insert(frame.after.end(), outer->after.begin(), outer->after.end());
    if (frame.before.size() + frame.after.size() > kMostTokens) {
      return part.Refuse(absl::StrCat("a text has more than ", kMostTokens, " tokens around it"));
    }
  }
  return frame;
}

}  // namespace tessera::models
