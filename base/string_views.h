// Between the string_view of the standard library and Abseil's.
//
// Debian builds Abseil for C++14, so that its string_view is a class of its own which neither converts to the
// standard's nor from it. Boost's converts from the standard's and to it.
#pragma once

#include <string_view>

#include "absl/strings/string_view.h"

namespace tessera::base {

inline absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view StdView(absl::string_view text) { return {text.data(), text.size()}; }

}  // namespace tessera::base
