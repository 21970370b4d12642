#include "models/tokenizers/unicode_text.h"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/utf16.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/tokenizers/newer_characters.h"

namespace tessera::models {
namespace {

constexpr char32_t kFirstWithDecomposition = 0xA0;
constexpr char32_t kFirstWithCombiningClass = 0x300;
constexpr char32_t kCapitalIWithDot = 0x130;  // the one character whose lower case is two: i and U+0307
constexpr char32_t kDotAbove = 0x307;
// The longest decomposition, that of U+FDFA, has 18 characters.
constexpr int kMaxDecompositionUnits = 32;

const UNormalizer2* NormalizerOf(Decomposition kind) {
  UErrorCode error = U_ZERO_ERROR;
  // Owned by ICU and never freed. ICU's data is linked in, so this cannot fail.
  return kind == Decomposition::kCanonical ? unorm2_getNFCInstance(&error) : unorm2_getNFKCInstance(&error);
}

// The versions of the reference's tables: combining classes are those of Unicode 9, compatibility decompositions those
// of Unicode 12.0.
constexpr UVersionInfo kClassesVersion = {9, 255, 255, 255};
constexpr UVersionInfo kDecompositionsVersion = {12, 0, 255, 255};

bool IsNewerThan(const UVersionInfo& version, char32_t code) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(code), age);
  return std::lexicographical_compare(std::begin(version), std::end(version), std::begin(age), std::end(age));
}

uint8_t CombiningClass(char32_t code) {
  if (code < kFirstWithCombiningClass) return 0;
  const uint8_t combining_class = u_getCombiningClass(static_cast<UChar32>(code));
  return combining_class != 0 && IsNewerThan(kClassesVersion, code) ? 0 : combining_class;
}

}  // namespace

absl::Status CheckText(std::string_view utf8, const std::string& field) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(utf8.data());
  const auto size = static_cast<int64_t>(utf8.size());
  for (int64_t i = 0; i < size;) {
    const int64_t begin = i;
    UChar32 c;
    U8_NEXT(bytes, i, size, c);
    if (c < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": the text is not valid UTF-8 at byte ", begin, "; send it encoded as UTF-8"));
    }
    if (c == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": the text has a NUL character at byte ", begin, "; remove it"));
    }
  }
  return absl::OkStatus();
}

std::vector<TracedChar> TraceText(std::string_view utf8, size_t origin) {
  std::vector<TracedChar> text;
  text.reserve(utf8.size());
  for (size_t i = 0; i < utf8.size();) {
    const size_t begin = i;
    UChar32 c;
    U8_NEXT_OR_FFFD(reinterpret_cast<const uint8_t*>(utf8.data()), i, utf8.size(), c);
    text.push_back({static_cast<char32_t>(c), origin + begin});
  }
  return text;
}

std::vector<TracedChar> Decompose(const std::vector<TracedChar>& text, Decomposition kind) {
  const UNormalizer2* const normalizer = NormalizerOf(kind);
  std::vector<TracedChar> result;
  result.reserve(text.size());
  for (const TracedChar& c : text) {
    UChar units[kMaxDecompositionUnits];
    UErrorCode error = U_ZERO_ERROR;
    const int32_t count =
        c.code < kFirstWithDecomposition
            ? -1
            : unorm2_getDecomposition(normalizer, static_cast<UChar32>(c.code), units, kMaxDecompositionUnits, &error);
    const bool unknown = kind == Decomposition::kCompatibility && IsNewerThan(kDecompositionsVersion, c.code);
    if (count < 0 || U_FAILURE(error) || unknown) {
      result.push_back(c);
      continue;
    }
    for (int32_t i = 0; i < count;) {
      UChar32 part;
      U16_NEXT(units, i, count, part);
      result.push_back({static_cast<char32_t>(part), c.origin});
    }
  }
  const auto combines = [](const TracedChar& c) { return CombiningClass(c.code) != 0; };
  for (auto begin = result.begin(); (begin = std::find_if(begin, result.end(), combines)) != result.end();) {
    const auto end = std::find_if_not(begin, result.end(), combines);
    std::stable_sort(begin, end, [](const TracedChar& a, const TracedChar& b) {
      return CombiningClass(a.code) < CombiningClass(b.code);
    });
    begin = end;
  }
  return result;
}

std::vector<TracedChar> Compose(std::vector<TracedChar> text) {
  const UNormalizer2* const normalizer = NormalizerOf(Decomposition::kCanonical);
  size_t size = 0;           // of the composed text, which overwrites the input
  size_t next_to_start = 0;  // 1 + the index of the last character that others can join; 0 if there is none
  uint8_t last_class = 0;
  for (const TracedChar c : text) {
    const uint8_t combining_class = CombiningClass(c.code);
    if (next_to_start > 0 && (size == next_to_start || last_class < combining_class)) {
      TracedChar& start = text[next_to_start - 1];
      const UChar32 joined =
          c.code < kFirstWithCombiningClass
              ? -1
              : unorm2_composePair(normalizer, static_cast<UChar32>(start.code), static_cast<UChar32>(c.code));
      if (joined >= 0) {
        start.code = static_cast<char32_t>(joined);
        continue;
      }
    }
    text[size++] = c;
    last_class = combining_class;
    if (combining_class == 0) next_to_start = size;
  }
  text.resize(size);
  return text;
}

std::vector<TracedChar> LowerCase(const std::vector<TracedChar>& text) {
  std::vector<TracedChar> result;
  result.reserve(text.size());
  for (const TracedChar& c : text) {
    const auto lower = static_cast<char32_t>(u_tolower(static_cast<UChar32>(c.code)));
    result.push_back({lower == c.code ? NewerLowerCase(c.code) : lower, c.origin});
    if (c.code == kCapitalIWithDot) result.push_back({kDotAbove, c.origin});
  }
  return result;
}

bool IsWhiteSpace(char32_t code) { return u_isUWhiteSpace(static_cast<UChar32>(code)); }

void NormalizedText::Append(TracedChar c) {
  uint8_t bytes[U8_MAX_LENGTH];
  size_t size = 0;
  U8_APPEND_UNSAFE(bytes, size, static_cast<UChar32>(c.code));
  text.append(reinterpret_cast<const char*>(bytes), size);
  origins.insert(origins.end(), size, c.origin);
}

}  // namespace tessera::models
