// Where `tessera train init` and `tessera train import` write a configuration: to a new file, or standard output.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::client {

// Returns the value of --output, or the name that is used without one. INVALID_ARGUMENT if the file exists.
absl::StatusOr<std::string> ConfigOutput(const std::string& typed);

// Writes the text to `output`, durably; "-" is standard output. After a file `summary` is printed on standard error,
// after the file's name. Errors are marked with their stage (exit_code.h).
absl::Status WriteConfig(const std::string& output, const std::string& text, const std::string& summary);

}  // namespace tessera::client
