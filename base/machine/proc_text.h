// Reads the small texts in which Linux reports processes, memory and control groups.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::base {

// Returns a file of at most a few kilobytes; empty if it cannot be read.
std::string ReadProcText(const std::string& path);

// Returns the words of the line that begins with `label`, without the label, which may itself have several words.
std::vector<std::string> WordsAfter(const std::string& text, std::string_view label);

}  // namespace tessera::base
