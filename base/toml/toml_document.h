// Parses a TOML text from outside into JSON text, so that one reader serves both formats.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tessera::base {

// Returns the document as a JSON object, keys in alphabetical order. Dates and times become strings as TOML writes
// them, and numbers that are not finite null. Returns InvalidArgument, with the line, if the text is not TOML 1.0.
absl::StatusOr<std::string> TomlToJson(const std::string& text);

}  // namespace tessera::base
