// Paths in commands that messages show.
#pragma once

#include <string>
#include <string_view>

namespace tessera::base {

// Quotes the path for a shell; returns the word FILE if the path does not fit into a line.
std::string ShellWord(std::string_view path);

}  // namespace tessera::base
