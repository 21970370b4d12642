// Prepares text like BERT's tokenizer: cleans it, puts Chinese characters between spaces, strips accents, and lowers
// the case.
#pragma once

#include <vector>

#include "models/tokenizers/unicode_text.h"

namespace tessera::models {

struct BertCleaning {
  bool removes_controls = true;  // also turns all white space into spaces
  bool spaces_chinese = true;
  bool strips_accents = true;
  bool lowers = true;
};

std::vector<TracedChar> CleanBertText(const std::vector<TracedChar>& text, const BertCleaning& cleaning);

// Whether the character is ASCII punctuation or punctuation of Unicode 8, the reference's version.
bool IsBertPunctuation(char32_t code);

}  // namespace tessera::models
