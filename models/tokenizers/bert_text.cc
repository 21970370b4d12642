#include "models/tokenizers/bert_text.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"

namespace tessera::models {
namespace {

constexpr char32_t kReplacementCharacter = 0xFFFD;

// The reference's tables of categories end with Unicode 8: newer characters are neither marks nor punctuation.
constexpr uint8_t kUnicodeVersion = 8;

// Characters whose category changed later, with their category in Unicode 8.
constexpr std::pair<char32_t, uint32_t> kFormerCategories[] = {{0x166D, U_GC_PO_MASK}, {0x1734, U_GC_MN_MASK},
                                                               {0x1885, U_GC_LO_MASK}, {0x1886, U_GC_LO_MASK},
                                                               {0xA9BD, U_GC_MC_MASK}, {0x111C9, U_GC_PO_MASK}};

bool HasCategory(char32_t code, uint32_t mask) {
  for (const auto& [former, category] : kFormerCategories) {
    if (former == code) return (category & mask) != 0;
  }
  const auto c = static_cast<UChar32>(code);
  if ((U_GET_GC_MASK(c) & mask) == 0) return false;
  UVersionInfo age;
  u_charAge(c, age);
  return age[0] <= kUnicodeVersion;
}

bool IsRemoved(char32_t code) {
  if (code == '\t' || code == '\n' || code == '\r') return false;
  return code == kReplacementCharacter || HasCategory(code, U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK);
}

// Whether the character is in one of the blocks of ideographs that the reference lists (these omit the beginning of
// Extension E).
bool IsChinese(char32_t code) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},
                                                       {0x20000, 0x2A6DF}, {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF},
                                                       {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [code](const auto& range) { return code >= range.first && code <= range.second; });
}

}  // namespace

std::vector<TracedChar> CleanBertText(const std::vector<TracedChar>& text, const BertCleaning& cleaning) {
  std::vector<TracedChar> result;
  result.reserve(text.size());
  for (TracedChar c : text) {
    if (cleaning.removes_controls) {
      if (IsRemoved(c.code)) continue;
      if (IsWhiteSpace(c.code)) c.code = ' ';
    }
    const bool spaced = cleaning.spaces_chinese && IsChinese(c.code);
    if (spaced) result.push_back({' ', c.origin});
    result.push_back(c);
    if (spaced) result.push_back({' ', c.origin});
  }
  if (cleaning.strips_accents) {
    result = Decompose(result);
    std::erase_if(result, [](const TracedChar& c) { return HasCategory(c.code, U_GC_MN_MASK); });
  }
  if (cleaning.lowers) result = LowerCase(result);
  return result;
}

bool IsBertPunctuation(char32_t code) {
  return code < 0x80 ? absl::ascii_ispunct(static_cast<unsigned char>(code)) : HasCategory(code, U_GC_P_MASK);
}

}  // namespace tessera::models
