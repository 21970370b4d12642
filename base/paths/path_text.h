// Paths in messages and in the commands that messages show.
#pragma once

#include <string>
#include <string_view>

namespace tessera::base {

// Returns the path in double quotes. It is never truncated, because the user may copy it.
std::string QuotePath(std::string_view path);

// Quotes the path for a shell; returns the word FILE if the path does not fit into a line.
std::string ShellWord(std::string_view path);

}  // namespace tessera::base
