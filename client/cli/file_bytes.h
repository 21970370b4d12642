// Whole files that the user names.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::client {

// At most a gibibyte. The error names the path and what is wrong with it.
absl::StatusOr<std::string> ReadFileBytes(const std::string& path);

// Whether these are the first bytes of a PNG, JPEG or WebP file.
bool LooksLikeImage(absl::string_view bytes);

// The first bytes of a file, for LooksLikeImage; empty where it cannot be read.
std::string FirstBytes(const std::string& path);

}  // namespace tessera::client
