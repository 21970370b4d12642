// What a worker has written to its standard error before it ended stands at the end of the messages of its group: for
// operators, whose log it belongs in, and for no caller, whose business paths and addresses are not.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tessera::server {

// Between what has happened and what the worker has written last.
inline constexpr absl::string_view kLastOutput = "; its last messages: ";

inline std::string WithoutLastOutput(absl::string_view message) {
  return std::string(message.substr(0, message.find(kLastOutput)));
}

}  // namespace tessera::server
