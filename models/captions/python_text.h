// Represents text as sequences of code points, with the character classes and case rules of Python's str and re.
//
// The reference cleans captions in Python, whose definitions of white space, word and digit differ from ICU's \s, \w
// and \d. A string here never holds a surrogate. Everything is pure and thread-safe.
#pragma once

#include <unicode/unistr.h>

#include <optional>
#include <string>
#include <string_view>

namespace tessera::models::caption {

// Decodes UTF-8. Every ill-formed sequence of bytes becomes one U+FFFD (maximal subparts, as in Python's
// errors="replace").
std::u32string DecodeUtf8(std::string_view bytes);
std::string EncodeUtf8(std::u32string_view text);

icu::UnicodeString ToIcu(std::u32string_view text);
std::u32string FromIcu(const icu::UnicodeString& text);

// Returns nothing if the bytes are ill-formed. `allow_variants` also admits CESU-8 surrogate pairs and C0 80 for
// U+0000.
std::optional<std::u32string> DecodeUtf8Strictly(std::string_view bytes, bool allow_variants);

bool IsSpace(char32_t c);  // str.isspace(), and \s
bool IsDigit(char32_t c);  // \d: decimal digits of every script
bool IsWord(char32_t c);   // \w: letters, numbers, underscore; no combining marks
inline bool IsAsciiLetter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline bool IsAsciiDigit(char32_t c) { return c >= '0' && c <= '9'; }
inline bool IsAsciiHexDigit(char32_t c) { return IsAsciiDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

std::u32string_view Strip(std::u32string_view text);
// Apply the full case mappings of Unicode without a language, including final sigma.
std::u32string ToLower(std::u32string_view text);
std::u32string ToUpper(std::u32string_view text);
// Convert to the normalization forms C and KC.
std::u32string ToNfc(std::u32string_view text);
std::u32string ToNfkc(std::u32string_view text);

}  // namespace tessera::models::caption
