// Reads whole files that the user names.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::client {

// Reads at most one gibibyte. Errors name the path and the problem.
absl::StatusOr<std::string> ReadFileBytes(const std::string& path);

// Whether these are the first bytes of a PNG, JPEG or WebP file.
bool LooksLikeImage(absl::string_view bytes);

// Returns the first bytes of a file, for LooksLikeImage; empty if it cannot be read.
std::string FirstBytes(const std::string& path);

}  // namespace tessera::client
