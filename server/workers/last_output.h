// Separates the last lines that a dead worker wrote to its standard error from the rest of its group's error message.
// They are appended for operators and belong in the server's log. Callers must not see them, because they may contain
// paths and addresses.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tessera::server {

// Comes between the error and the worker's last output.
inline constexpr absl::string_view kLastOutput = "; its last messages: ";

inline std::string WithoutLastOutput(absl::string_view message) {
  return std::string(message.substr(0, message.find(kLastOutput)));
}

}  // namespace tessera::server
