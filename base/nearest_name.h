// Which of some names somebody who misspelt one may have meant, and what a message says of it. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera::base {

// The one of `names` that is spelt most like `typed`, whatever the case; empty where more than half of the letters
// would be wrong.
std::string NearestName(absl::string_view typed, absl::Span<const std::string> names);

// A value as an error message shows it: short, in quotes and readable whatever bytes it has.
std::string QuotedValue(absl::string_view value);

// Empty if `value` is among `valid`; else what a message says after the name of the field: " 'lroa' is unknown; valid
// values are lora, full; did you mean 'lora'?". The nearest name comes before a list of many.
std::string ProblemOfName(absl::string_view value, absl::Span<const std::string> valid);

// As ProblemOfName of a value that is not among `valid`, where the nearest name is known; empty: there is none.
std::string UnknownName(absl::string_view value, absl::Span<const std::string> valid, absl::string_view nearest);

}  // namespace tessera::base
