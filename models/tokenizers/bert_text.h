// How BERT's tokenizer prepares text: cleaned, Chinese characters between spaces, accents stripped, lowered.
#pragma once

#include <vector>

#include "models/tokenizers/unicode_text.h"

namespace tessera::models {

struct BertCleaning {
  bool removes_controls = true;  // and makes all white space spaces
  bool spaces_chinese = true;
  bool strips_accents = true;
  bool lowers = true;
};

std::vector<TracedChar> CleanBertText(const std::vector<TracedChar>& text, const BertCleaning& cleaning);

// ASCII's punctuation, and that of Unicode 8 as the reference knows it.
bool IsBertPunctuation(char32_t code);

}  // namespace tessera::models
