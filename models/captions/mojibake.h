// Repairs mojibake as ftfy's fix_encoding does (version 6.3.1, default settings). Pure and thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace tessera::models::caption {

// "â€™" becomes "’", "schÃ¶n" becomes "schön". A text that does not look like mojibake is returned unchanged.
std::u32string FixEncoding(std::u32string_view text);

// Replaces control characters 80 to 9F by the characters of windows-1252.
std::u32string FixC1Controls(std::u32string_view text);

}  // namespace tessera::models::caption
