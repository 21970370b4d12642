// Header lines of requests that the server sends to other servers, from the configuration.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::server {

// Returns "Name: value". INVALID_ARGUMENT for a name or a value that is not valid, and for the headers that belong to
// the message itself. The message has no value.
absl::StatusOr<std::string> HeaderLine(absl::string_view name, absl::string_view value);

// Reads header lines, "Name: value"; empty lines and those that begin with "#" are skipped.
absl::StatusOr<std::vector<std::string>> ParseHeaderLines(absl::string_view text);

// Reads a file of header lines. NOT_FOUND if it cannot be read; errors name the setting `name`.
absl::StatusOr<std::vector<std::string>> ReadHeaderLines(const std::string& path, absl::string_view name);

}  // namespace tessera::server
