#include "models/tokenizers/tokenizer_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/macros/status_macros.h"

namespace tessera::models {
namespace {

constexpr size_t kMostParts = 64;

absl::Status Collect(const base::Json& json, const std::string& name, const std::string& list_key,
                     std::vector<TokenizerPart>& parts) {
  ASSIGN_OR_RETURN(base::ConfigReader fields, base::ConfigReader::FromJson(json, name));
  std::string type = fields.RequiredString("type");
  RETURN_IF_ERROR(fields.status());
  if (type != "Sequence") {
    if (parts.size() == kMostParts) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": there are more than ", kMostParts, " of them"));
    }
    parts.push_back({std::move(type), std::move(fields)});
    return absl::OkStatus();
  }
  const base::Json* const list = json.Find(list_key);
  if (list == nullptr || !list->is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": a sequence has a list of parts in ", base::Quote(list_key)));
  }
  for (size_t i = 0; i < list->items().size(); ++i) {
    RETURN_IF_ERROR(Collect(list->items()[i], absl::StrCat(name, "[", i, "]"), list_key, parts));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TokenizerPart::Finish() {
  RETURN_IF_ERROR(fields.status());
  const std::vector<std::string> unknown = fields.UnknownFields();
  if (unknown.empty()) return absl::OkStatus();
  return Refuse(absl::StrCat("the field ", base::Quote(unknown.front()), " of ", type, " is not supported"));
}

absl::Status TokenizerPart::Refuse(const std::string& what) const {
  return absl::InvalidArgumentError(absl::StrCat(fields.name(), ": ", what));
}

absl::StatusOr<std::vector<TokenizerPart>> ReadParts(const base::Json* json, const std::string& name,
                                                     const std::string& list_key) {
  std::vector<TokenizerPart> parts;
  if (json == nullptr || json->is_null()) return parts;
  RETURN_IF_ERROR(Collect(*json, name, list_key, parts));
  return parts;
}

absl::Status UnknownPart(const TokenizerPart& part, std::vector<std::string> known) {
  std::sort(known.begin(), known.end());
  return part.Refuse(absl::StrCat("the type ", base::Quote(part.type), " is not supported; valid values are ",
                                  absl::StrJoin(known, ", ")));
}

}  // namespace tessera::models
