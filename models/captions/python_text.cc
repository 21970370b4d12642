#include "models/captions/python_text.h"

#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace tessera::models::caption {
namespace {

// Normalization data is linked into ICU's library; if it is missing, the text is returned unchanged.
std::u32string Normalize(const icu::Normalizer2* (*form)(UErrorCode&), std::u32string_view text) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = form(error);
  if (U_FAILURE(error)) return std::u32string(text);
  const icu::UnicodeString normalized = normalizer->normalize(ToIcu(text), error);
  return U_FAILURE(error) ? std::u32string(text) : FromIcu(normalized);
}

bool IsDecimalDigit(UChar32 c) { return u_charType(c) == U_DECIMAL_DIGIT_NUMBER; }

bool IsLetterOrNumber(UChar32 c) {
  return (U_GET_GC_MASK(c) & (U_GC_L_MASK | U_GC_N_MASK)) != 0 ||
         u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE) != U_NT_NONE;
}

struct CharacterClass {
  bool digit = false;
  bool word = false;
};

// A table for the characters of the basic plane. The patterns query the same few characters repeatedly, and ICU is
// slow.
const std::array<CharacterClass, 0x10000>& BasicPlane() {
  static const auto* table = [] {
    auto* classes = new std::array<CharacterClass, 0x10000>;
    for (UChar32 c = 0; c < 0x10000; ++c) (*classes)[c] = {.digit = IsDecimalDigit(c), .word = IsLetterOrNumber(c)};
    return classes;
  }();
  return *table;
}

bool IsAscii(std::u32string_view text) {
  return std::all_of(text.begin(), text.end(), [](char32_t c) { return c < 0x80; });
}

}  // namespace

std::u32string DecodeUtf8(std::string_view bytes) {
  std::u32string result;
  result.reserve(bytes.size());
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const auto size = static_cast<int64_t>(bytes.size());
  for (int64_t i = 0; i < size;) {
    UChar32 c;
    U8_NEXT(data, i, size, c);
    result += c < 0 ? U'\uFFFD' : static_cast<char32_t>(c);
  }
  return result;
}

std::optional<std::u32string> DecodeUtf8Strictly(std::string_view bytes, bool allow_variants) {
  std::u32string result;
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const auto size = static_cast<int64_t>(bytes.size());
  for (int64_t i = 0; i < size;) {
    if (allow_variants && data[i] == 0xC0 && i + 1 < size && data[i + 1] == 0x80) {
      result += U'\0';
      i += 2;
      continue;
    }
    if (allow_variants && data[i] == 0xED && i + 5 < size && (data[i + 1] & 0xF0) == 0xA0 &&
        (data[i + 2] & 0xC0) == 0x80 && data[i + 3] == 0xED && (data[i + 4] & 0xF0) == 0xB0 &&
        (data[i + 5] & 0xC0) == 0x80) {
      const char32_t high = (data[i + 1] & 0x0Fu) << 6 | (data[i + 2] & 0x3Fu);
      const char32_t low = (data[i + 4] & 0x0Fu) << 6 | (data[i + 5] & 0x3Fu);
      result += 0x10000 + (high << 10) + low;
      i += 6;
      continue;
    }
    UChar32 c;
    U8_NEXT(data, i, size, c);
    if (c < 0) return std::nullopt;
    result += static_cast<char32_t>(c);
  }
  return result;
}

std::string EncodeUtf8(std::u32string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char32_t c : text) {
    uint8_t buffer[U8_MAX_LENGTH];
    int32_t length = 0;
    U8_APPEND_UNSAFE(buffer, length, c);
    result.append(reinterpret_cast<const char*>(buffer), length);
  }
  return result;
}

icu::UnicodeString ToIcu(std::u32string_view text) {
  return icu::UnicodeString::fromUTF32(reinterpret_cast<const UChar32*>(text.data()),
                                       static_cast<int32_t>(text.size()));
}

std::u32string FromIcu(const icu::UnicodeString& text) {
  std::u32string result;
  result.reserve(text.length());
  for (int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) result += static_cast<char32_t>(text.char32At(i));
  return result;
}

bool IsSpace(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsDigit(char32_t c) {
  if (c < 0x80) return IsAsciiDigit(c);
  return c < 0x10000 ? BasicPlane()[c].digit : IsDecimalDigit(static_cast<UChar32>(c));
}

bool IsWord(char32_t c) {
  if (c < 0x80) return IsAsciiLetter(c) || IsAsciiDigit(c) || c == '_';
  return c < 0x10000 ? BasicPlane()[c].word : IsLetterOrNumber(static_cast<UChar32>(c));
}

std::u32string_view Strip(std::u32string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

std::u32string ToLower(std::u32string_view text) { return FromIcu(ToIcu(text).toLower(icu::Locale::getRoot())); }

std::u32string ToUpper(std::u32string_view text) { return FromIcu(ToIcu(text).toUpper(icu::Locale::getRoot())); }

std::u32string ToNfc(std::u32string_view text) {
  return IsAscii(text) ? std::u32string(text) : Normalize(&icu::Normalizer2::getNFCInstance, text);
}

std::u32string ToNfkc(std::u32string_view text) {
  return IsAscii(text) ? std::u32string(text) : Normalize(&icu::Normalizer2::getNFKCInstance, text);
}

}  // namespace tessera::models::caption
