// Names that nobody can guess.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

// `prefix` and 128 random bits in hexadecimal: "job_5f0c…".
std::string RandomId(absl::string_view prefix);

// Whether `id` could have come from RandomId(prefix).
bool IsIdOf(absl::string_view prefix, absl::string_view id);

}  // namespace tessera
