// Which of some names somebody who misspelt one may have meant. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera::base {

// The one of `names` that is spelt most like `typed`, whatever the case; empty where more than half of the letters
// would be wrong.
std::string NearestName(absl::string_view typed, absl::Span<const std::string> names);

}  // namespace tessera::base
