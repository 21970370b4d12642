#include "server/api/request_fields.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/field_error.h"
#include "base/nearest_name.h"

namespace tessera::server {

const RequestField* FindField(absl::string_view id) {
  const auto* field =
      std::find_if(std::begin(kRequestFields), std::end(kRequestFields), [id](const auto& f) { return id == f.id; });
  return field == std::end(kRequestFields) ? nullptr : field;
}

std::string ApiName(const RequestField& field) { return field.name != nullptr ? field.name : field.id; }

std::string Label(const RequestField& field) {
  return field.label != nullptr ? field.label : absl::StrReplaceAll(field.id, {{"_", " "}});
}

std::string MetadataKey(const RequestField& field) {
  std::string key = field.key != nullptr ? field.key : Label(field);
  key[0] = absl::ascii_toupper(static_cast<unsigned char>(key[0]));
  return key;
}

std::vector<std::string> Words(const RequestField& field) {
  if (field.words == nullptr) return {};
  return absl::StrSplit(field.words, ' ');
}

Bounds BoundsOf(const RequestField& field) {
  if (field.bounds.has_value()) return *field.bounds;
  Bounds found = kUnbounded;
  const auto find = [&](const auto& described) {
    if (absl::string_view(described.name) == field.id) found = BoundsOf(described.valid);
  };
  base::ForEachFieldOf<control::JobParameters>(find);
  if (field.zero_is_absent) found.low = 1;
  return found;
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

}  // namespace tessera::server
