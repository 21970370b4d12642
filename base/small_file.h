// Files that are small when they are what they should be.
#pragma once

#include <optional>
#include <string>

namespace tessera {

// The file's bytes, but no more than `limit` + 1 of them: whoever gets that many knows that it is too large. Nothing
// where it cannot be opened.
std::optional<std::string> ReadSmallFile(const std::string& path, size_t limit);

}  // namespace tessera
