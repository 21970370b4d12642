#include "models/captions/html_entities.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "models/captions/python_text.h"

namespace tessera::models::caption {
namespace {

struct Entity {
  const char* name;
  char32_t first;
  char32_t second = 0;  // 0 if the entity is one character
  bool without_semicolon = false;
};

constexpr Entity kEntities[] = {
#include "models/captions/html_entities.inc"
};

constexpr char32_t kBeyondUnicode = 0x110000;
constexpr size_t kLongestReference = 32;        // bound of html.unescape
constexpr size_t kLongestUnambiguousName = 24;  // bound of ftfy
constexpr size_t kShortestPrefix = 2;

constexpr std::array<char16_t, 32> kWindows1252 = {0x20AC, 0x0081, 0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021,
                                                   0x02C6, 0x2030, 0x0160, 0x2039, 0x0152, 0x008D, 0x017D, 0x008F,
                                                   0x0090, 0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014,
                                                   0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0x009D, 0x017E, 0x0178};

const Entity* Find(std::u32string_view name) {
  std::string key;
  for (const char32_t c : name) {
    if (!IsAsciiLetter(c) && !IsAsciiDigit(c)) return nullptr;
    key += static_cast<char>(c);
  }
  const auto* const found =
      std::lower_bound(std::begin(kEntities), std::end(kEntities), key,
                       [](const Entity& entity, const std::string& k) { return entity.name < k; });
  return found != std::end(kEntities) && found->name == key ? found : nullptr;
}

void Append(const Entity& entity, std::u32string* text) {
  *text += entity.first;
  if (entity.second != 0) *text += entity.second;
}

// Returns the length of the longest prefix of `name` that is an entity even without ";"; 0 if there is none.
size_t LongestLegacyPrefix(std::u32string_view name) {
  for (size_t length = name.size(); length >= kShortestPrefix; --length) {
    const Entity* const entity = Find(name.substr(0, length));
    if (entity != nullptr && entity->without_semicolon) return length;
  }
  return 0;
}

// Whether the HTML standard calls the code point an error and Python drops it.
bool IsDropped(char32_t c) {
  return (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || (c >= 0xFDD0 && c <= 0xFDEF) ||
         (c & 0xFFFE) == 0xFFFE;
}

void AppendNumbered(char32_t number, std::u32string* text) {
  if (number == 0 || (number >= 0xD800 && number <= 0xDFFF) || number >= kBeyondUnicode) {
    *text += U'\uFFFD';
  } else if (!IsDropped(number)) {
    *text += Windows1252ToUnicode(number);
  }
}

struct NumericReference {
  char32_t number;
  size_t length;  // from "&", without a ";"
};

// Parses a reference at the beginning of the text, such as &#233 or &#xE9.
std::optional<NumericReference> ParseNumericReference(std::u32string_view text) {
  if (text.size() < 3 || text[1] != U'#') return std::nullopt;
  const bool hex = text[2] == U'x' || text[2] == U'X';
  const size_t begin = hex ? 3 : 2;
  size_t end = begin;
  while (end < text.size() && (hex ? IsAsciiHexDigit(text[end]) : IsAsciiDigit(text[end]))) ++end;
  if (end == begin) return std::nullopt;
  return NumericReference{ParseCharacterNumber(text.substr(begin, end - begin), hex ? 16 : 10), end};
}

bool EndsName(char32_t c) {
  return c == U'\t' || c == U'\n' || c == U'\f' || c == U' ' || c == U'<' || c == U'&' || c == U'#' || c == U';';
}

// Decodes the named reference at the beginning of the text and returns its length in the text; 0 if there is none.
size_t DecodeNamed(std::u32string_view text, std::u32string* result) {
  size_t length = 0;
  while (length < kLongestReference && length + 1 < text.size() && !EndsName(text[length + 1])) ++length;
  const std::u32string_view name = text.substr(1, length);
  if (1 + length < text.size() && text[1 + length] == U';') {
    if (const Entity* const entity = Find(name)) {
      Append(*entity, result);
      return 1 + length + 1;
    }
  }
  const size_t prefix = LongestLegacyPrefix(name);
  if (prefix == 0) return 0;
  Append(*Find(name.substr(0, prefix)), result);
  return 1 + prefix;
}

std::optional<std::u32string> UnambiguousEntity(std::u32string_view name) {
  if (auto found = NamedEntity(name)) return found;
  const std::u32string lower = ToLower(name);
  if (ToUpper(lower) != name || LongestLegacyPrefix(name) != 0) return std::nullopt;
  const std::optional<std::u32string> found = NamedEntity(lower);
  return found ? std::make_optional(ToUpper(*found)) : std::nullopt;
}

}  // namespace

std::optional<std::u32string> NamedEntity(std::u32string_view name) {
  const Entity* const entity = Find(name);
  if (entity == nullptr) return std::nullopt;
  std::u32string text;
  Append(*entity, &text);
  return text;
}

char32_t ParseCharacterNumber(std::u32string_view digits, int base) {
  char32_t number = 0;
  for (const char32_t c : digits) {
    const char32_t digit = c <= U'9' ? c - U'0' : (c | 0x20) - U'a' + 10;
    number = std::min<char32_t>(number * base + digit, kBeyondUnicode);
  }
  return number;
}

char32_t Windows1252ToUnicode(char32_t c) { return c >= 0x80 && c <= 0x9F ? char32_t{kWindows1252[c - 0x80]} : c; }

std::u32string UnescapeHtml(std::u32string_view text) {
  std::u32string result;
  for (size_t i = 0; i < text.size();) {
    const std::u32string_view rest = text.substr(i);
    if (rest[0] != U'&') {
      result += rest[0];
      ++i;
    } else if (const auto numeric = ParseNumericReference(rest)) {
      AppendNumbered(numeric->number, &result);
      i += numeric->length;
      if (i < text.size() && text[i] == U';') ++i;
    } else if (const size_t length = DecodeNamed(rest, &result)) {
      i += length;
    } else {
      result += U'&';
      ++i;
    }
  }
  return result;
}

std::u32string UnescapeUnambiguousHtml(std::u32string_view text) {
  std::u32string result;
  for (size_t i = 0; i < text.size();) {
    const std::u32string_view rest = text.substr(i);
    if (rest[0] == U'&') {
      const size_t begin = rest.size() > 1 && rest[1] == U'#' ? 2 : 1;
      size_t end = begin;
      while (end < rest.size() && end - begin < kLongestUnambiguousName &&
             (IsAsciiLetter(rest[end]) || IsAsciiDigit(rest[end]))) {
        ++end;
      }
      if (end > begin && end < rest.size() && rest[end] == U';') {
        if (begin == 1) {
          if (const auto found = UnambiguousEntity(rest.substr(1, end - 1))) {
            result += *found;
            i += end + 1;
            continue;
          }
        } else if (const auto numeric = ParseNumericReference(rest);
                   numeric && numeric->length == end && numeric->number != U';') {
          AppendNumbered(numeric->number, &result);
          i += end + 1;
          continue;
        }
      }
    }
    result += rest[0];
    ++i;
  }
  return result;
}

}  // namespace tessera::models::caption
