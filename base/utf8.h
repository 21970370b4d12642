// Checks of text that comes from outside.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera::base {

// Bytes of the well-formed UTF-8 sequence (Unicode, table 3-7) that `text` begins with; 0 if it begins with none.
size_t Utf8SequenceLength(absl::string_view text);

// Offset of the first byte that is not part of a well-formed sequence; text.size() if all are.
size_t FirstInvalidUtf8(absl::string_view text);

// Each byte that is not part of a well-formed sequence becomes a question mark.
std::string ReplaceInvalidUtf8(absl::string_view text);

}  // namespace tessera::base
