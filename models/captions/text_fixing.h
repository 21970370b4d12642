// Repairs glitches of text as ftfy.fix_text does (version 6.3.1, default settings). Pure and thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace tessera::models::caption {

// Repairs the text line by line, until nothing changes: character references (up to the first line with a "<", which
// counts as HTML), mojibake, C1 controls, Latin ligatures, full-width and half-width forms, curly quotes, line breaks,
// terminal escapes, control characters, normalization form C.
std::u32string FixText(std::u32string_view text);

}  // namespace tessera::models::caption
