// Checks single fields of a request and builds the errors about them. Pure functions.
//
// Every error names the field, its value, what is valid, and the nearest valid choice if there is one. HTTP, gRPC and
// the command line name fields differently, so an error carries the field's id until one of them prints it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/field_error.h"
#include "base/nearest_name.h"
#include "server/api/request_fields.h"

namespace tessera::server {

// Returns INVALID_ARGUMENT about one field; the message is the field's name followed by `rest`.
absl::Status FieldError(absl::string_view field, absl::string_view rest);

// Returns the field name with which a FieldError's message begins; empty if the error is not about a field.
std::string ErrorField(const absl::Status& status);

// Converts an error about a field id (base/field_error.h) to a FieldError with the field's name on the command line or
// in the API. An id that is not in the table is used as the name. Other errors are returned unchanged.
enum class FieldNames : uint8_t { kCommandLine, kApi };
absl::Status Named(const absl::Status& status, FieldNames names);

using base::QuotedValue;

// Returns OK if `value` is one of `valid`, else an error that lists them and names the one with the most similar
// spelling.
absl::Status CheckName(absl::string_view field, absl::string_view value, absl::Span<const std::string> valid);

// Like CheckName for a field id; the name is filled in where the error is printed.
absl::Status CheckWord(absl::string_view id, absl::string_view value, absl::Span<const std::string> valid);

// Check that a value of the field `id` is within the bounds: a number, each number of a list, or the number of bytes of
// a text, which must be UTF-8 without NUL. Absent values are valid.
absl::Status CheckValue(const std::string& id, int64_t value, Bounds bounds);
absl::Status CheckValue(const std::string& id, double value, Bounds bounds);
absl::Status CheckValue(const std::string& id, const std::string& value, Bounds bounds);
absl::Status CheckValue(const std::string& id, const std::vector<int64_t>& values, Bounds bounds);
inline absl::Status CheckValue(const std::string&, bool, Bounds) { return absl::OkStatus(); }
inline absl::Status CheckValue(const std::string&, uint64_t, Bounds) { return absl::OkStatus(); }
template <typename Value>
absl::Status CheckValue(const std::string& id, const std::optional<Value>& value, Bounds bounds) {
  return value.has_value() ? CheckValue(id, *value, bounds) : absl::OkStatus();
}

absl::Status CheckCount(const std::string& id, size_t count, Bounds bounds);
// Checks a list of structs: the number of items, the fields of each, and the rules between items.
template <base::Described Item>
absl::Status CheckValue(const std::string& id, const std::vector<Item>& values, Bounds bounds) {
  absl::Status status = CheckCount(id, values.size(), bounds);
  for (const Item& item : values) {
    absl::Status valid;
    base::ForEachField([&](const auto& field,
                           const auto& member) { valid.Update(CheckValue(field.name, member, BoundsOf(field.valid))); },
                       item);
    if (valid.ok()) continue;
    status.Update(
        base::ErrorOfField(id + "[]", " " + QuotedValue(NameOfItem(item)) + ": " + std::string(valid.message())));
  }
  if constexpr (base::HasRules<std::vector<Item>>) status.Update(CheckRules(values));
  return status;
}

}  // namespace tessera::server
