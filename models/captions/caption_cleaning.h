// Prepares PixArt's prompts for tokenization, in the way its training captions were prepared.
//
// Does exactly what the reference pipeline does (diffusers' PixArtAlphaPipeline, with Beautiful Soup 4.15 on Python
// 3.11 and ftfy 6.3.1), so that the same prompt gives the same tokens. Unicode data come from ICU. Pure and
// thread-safe. Time and memory have bounds that are linear in the length of any caption.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::models {

// Cleans a caption (clean_caption = true, the default): decodes percent escapes and HTML; lowers the case; removes
// URLs, @names, ideographs, ids, file names, sizes and sales phrases; makes dashes, quotes and white space uniform;
// repairs mojibake. All of this is applied twice. Every CJK ideograph is removed, so a Chinese prompt becomes empty.
// Input and output are UTF-8; ill-formed sequences in `prompt` count as U+FFFD (requests with such text are refused
// earlier). Returns InvalidArgument if cleaning takes more steps than its bound; no caption is known that does.
absl::StatusOr<std::string> CleanCaption(std::string_view prompt);

// Prepares a caption without cleaning (clean_caption = false): lower case, white space trimmed.
std::string PlainCaption(std::string_view prompt);

}  // namespace tessera::models
