// Validates text from outside the program.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera::base {

// Returns the number of bytes of the well-formed UTF-8 sequence (Unicode, table 3-7) at the beginning of `text`; 0 if
// there is none.
size_t Utf8SequenceLength(absl::string_view text);

// Returns the offset of the first byte that is not part of a well-formed sequence; text.size() if all are.
size_t FirstInvalidUtf8(absl::string_view text);

// Replaces each byte that is not part of a well-formed sequence with a question mark.
std::string ReplaceInvalidUtf8(absl::string_view text);

// Replaces each ASCII control character with a question mark, so that the text is one line and moves no cursor.
std::string ReplaceControlCharacters(std::string text);

}  // namespace tessera::base
