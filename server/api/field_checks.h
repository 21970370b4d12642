// Errors about one field of a request, and the checks that lead to them. Pure functions.
//
// Every error names the field, its value, what is valid, and the nearest valid choice where there is one. Edges have
// names of their own for the fields, so that an error carries the field's id until an edge prints it.
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

// INVALID_ARGUMENT about one field; the message is the field's name with `rest` behind it.
absl::Status FieldError(absl::string_view field, absl::string_view rest);

// The name of the field that a FieldError is about; empty: it is about none. The message begins with it.
std::string ErrorField(const absl::Status& status);

// An error of a field by its id (base/field_error.h) as a FieldError, with the name that the command line or the API
// has for the field; an id that is not in the table is the name itself. Other errors as they are.
enum class FieldNames : uint8_t { kCommandLine, kApi };
absl::Status Named(const absl::Status& status, FieldNames names);

using base::QuotedValue;

// OK if `value` is among `valid`; else an error that lists them and names the one that is spelt most like it.
absl::Status CheckName(absl::string_view field, absl::string_view value, absl::Span<const std::string> valid);

// As CheckName for a field by its id: the edge that reports the error prints the name.
absl::Status CheckWord(absl::string_view id, absl::string_view value, absl::Span<const std::string> valid);

// That a value of the field with this id is within the bounds: numbers, each number of a list, the bytes of a text,
// which is UTF-8 without NUL. What is absent is.
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
// Of a list of structs: how many there are, the fields of each, and the rules between them.
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
