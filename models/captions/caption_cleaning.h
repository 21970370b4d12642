// How PixArt's prompts are prepared before they are tokenized, as its training captions were.
//
// Exactly what the reference pipeline does (diffusers' PixArtAlphaPipeline, with Beautiful Soup 4.15 on Python 3.11 and
// ftfy 6.3.1), so that the same prompt gives the same tokens. Unicode data are ICU's.
// Pure and thread-safe. Time and memory are linear in the length of the caption, whatever it is.
#pragma once

#include <string>
#include <string_view>

namespace tessera::models {

// The default (clean_caption = true): percent escapes and HTML decoded, lower case; URLs, @names, ideographs, ids, file
// names, sizes and sales phrases removed; dashes, quotes and white space made uniform; mojibake repaired. Applied
// twice. Removes every CJK ideograph: a Chinese prompt becomes empty. UTF-8 in and out; what is ill-formed in `prompt`
// counts as U+FFFD (requests with such text are refused earlier).
std::string CleanCaption(std::string_view prompt);

// Without cleaning (clean_caption = false): lower case, no white space at the ends.
std::string PlainCaption(std::string_view prompt);

}  // namespace tessera::models
