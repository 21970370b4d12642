// Converts the string_view of the standard library to that of Abseil.
//
// Debian builds Abseil for C++14, so that its string_view is a separate class without conversions from or to the
// standard one. Boost's class converts from and to the standard one.
#pragma once

#include <string_view>

#include "absl/strings/string_view.h"

namespace tessera::base {

inline absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace tessera::base
