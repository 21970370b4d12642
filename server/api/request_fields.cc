#include "server/api/request_fields.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/fields/field_error.h"
#include "base/text/nearest_name.h"
#include "server/api/field_checks.h"

namespace tessera::server {

const RequestFacts* FindField(absl::string_view id) {
  const RequestFacts* found = nullptr;
  const auto find = [&](const auto& field) {
    if (id == field.name) found = &field.facts;
  };
  std::apply([&](const auto&... fields) { (find(fields), ...); }, kRequestFields);
  return found;
}

std::string ApiName(const RequestFacts& facts) { return facts.name != nullptr ? facts.name : facts.id; }

std::string Label(const RequestFacts& facts) {
  return facts.label != nullptr ? facts.label : absl::StrReplaceAll(facts.id, {{"_", " "}});
}

std::string MetadataKey(const RequestFacts& facts) {
  std::string key = facts.key != nullptr ? facts.key : Label(facts);
  key[0] = absl::ascii_toupper(static_cast<unsigned char>(key[0]));
  return key;
}

std::vector<std::string> Words(const RequestFacts& facts) {
  if (facts.words == nullptr) return {};
  return absl::StrSplit(facts.words, ' ');
}

absl::Status CheckRules(const std::vector<AdapterRequest>& adapters) {
  for (auto adapter = adapters.begin(); adapter != adapters.end(); ++adapter) {
    const auto same = [&](const AdapterRequest& other) { return other.name == adapter->name; };
    if (std::find_if(adapters.begin(), adapter, same) != adapter) {
      return base::ErrorOfField("loras[]", absl::StrCat(" ", base::QuotedValue(adapter->name),
                                                        " is given twice; give it once, with the sum of its scales"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRules(const PictureSource& source) {
  const int given =
      (source.data.empty() ? 0 : 1) + (source.image_url.empty() ? 0 : 1) + (source.file_id.empty() ? 0 : 1);
  if (given == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("it has ", given, " of data, image_url and file_id; it must have one of them"));
}

}  // namespace tessera::server
