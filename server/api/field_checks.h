// Builds the errors about the fields of a request. Pure functions.
//
// Every error names the field, its value, what is valid, and the nearest valid choice if there is one. HTTP, gRPC and
// the command line name fields differently, so an error carries the field's id until one of them prints it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/text/nearest_name.h"

namespace tessera::server {

// Returns INVALID_ARGUMENT about one field; the message is the field's name followed by `rest`.
absl::Status FieldError(absl::string_view field, absl::string_view rest);

// Puts the name of a field before the message of an error and keeps its code and details. OK stays OK.
absl::Status WithFieldName(absl::string_view field, absl::Status error);

// Returns the field name with which a FieldError's message begins; empty if the error is not about a field.
std::string ErrorField(const absl::Status& status);

// Converts an error about a field id (base/fields/field_error.h) to a FieldError with the field's name on the command
// line or in the API. An id that is not in the table is used as the name. Other errors are returned unchanged.
enum class FieldNames : uint8_t { kCommandLine, kApi };
absl::Status Named(const absl::Status& status, FieldNames names);

using base::QuotedValue;

// Returns OK if `value` is one of `valid`, else an error that lists them and names the one with the most similar
// spelling.
absl::Status CheckName(absl::string_view field, absl::string_view value, absl::Span<const std::string> valid);

// Like CheckName for a field id; the name is filled in where the error is printed.
absl::Status CheckWord(absl::string_view id, absl::string_view value, absl::Span<const std::string> valid);

}  // namespace tessera::server
