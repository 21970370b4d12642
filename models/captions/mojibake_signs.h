// Detects signs of mojibake: UTF-8 that was read as a single-byte encoding. Pure and thread-safe.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace tessera::models::caption {

// Whether the text holds a sequence of characters that rarely occurs except in mojibake. The sequences and the
// character classes are those of ftfy's badness heuristic (version 6.3.1).
bool LooksLikeMojibake(std::u32string_view text);

// Replaces every run of characters that spell UTF-8 sequences in some single-byte encoding by the result of `replace`.
std::u32string ReplaceMisreadUtf8(std::u32string_view text,
                                  const std::function<std::u32string(std::u32string_view)>& replace);

}  // namespace tessera::models::caption
