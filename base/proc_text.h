// The small texts in which Linux shows processes, memory and control groups.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::base {

// A file of a few kilobytes at most; empty if it cannot be read.
std::string ReadProcText(const std::string& path);

// The words of the line that begins with `label`, which may itself have several words, without the label.
std::vector<std::string> WordsAfter(const std::string& text, std::string_view label);

}  // namespace tessera::base
