// Suggests the name that a misspelt name may stand for, and formats messages about it. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera::base {

// Returns the one of `names` with the spelling nearest to `typed`, ignoring case; empty if more than half of the
// letters would differ.
std::string NearestName(absl::string_view typed, absl::Span<const std::string> names);

// Formats a value for an error message: short, in quotes and printable for arbitrary bytes.
std::string QuotedValue(absl::string_view value);

// Returns an empty string if `value` is among `valid`; else the text of a message after the name of the field: " 'lroa'
// is unknown; valid values are lora, full; did you mean 'lora'?". A long list follows the nearest name.
std::string ProblemOfName(absl::string_view value, absl::Span<const std::string> valid);

// ProblemOfName for a value that is not among `valid`, with a known nearest name; an empty name means there is none.
std::string UnknownName(absl::string_view value, absl::Span<const std::string> valid, absl::string_view nearest);

}  // namespace tessera::base
