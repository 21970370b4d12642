#include "server/api/request_fields.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace tessera::server {
namespace {

Bounds BoundsOf(const base::Integer& valid) {
  if (valid.high == std::numeric_limits<uint64_t>::max()) return kUnbounded;
  return {static_cast<double>(valid.low), static_cast<double>(valid.high)};
}
Bounds BoundsOf(const base::Number& valid) { return {valid.low, valid.high}; }
Bounds BoundsOf(const base::Text& valid) { return {0, static_cast<double>(valid.most_bytes)}; }
Bounds BoundsOf(base::Flag) { return kUnbounded; }
Bounds BoundsOf(base::Choice) { return kUnbounded; }
Bounds BoundsOf(base::Nested) { return {control::kAdapterScales.low, control::kAdapterScales.high}; }
template <class Each>
Bounds BoundsOf(const base::List<Each>& valid) {
  return BoundsOf(valid.each);
}

}  // namespace

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

}  // namespace tessera::server
