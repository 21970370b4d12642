#include "server/image/character_sets.h"

#include <unicode/utf16.h>
#include <unicode/utf8.h>

#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/text/string_views.h"
#include "base/text/utf8.h"

namespace tessera::server {
namespace {

void AppendUtf8(UChar32 character, std::string& out) {
  uint8_t bytes[U8_MAX_LENGTH];
  int length = 0;
  U8_APPEND_UNSAFE(bytes, length, character);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

// Calls visit(character) for each character, with a negative value for an invalid byte. Stops when visit returns false.
template <typename Visit>
void ForEachUtf8(std::string_view text, Visit visit) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  for (size_t i = 0; i < text.size();) {
    UChar32 character = 0;
    U8_NEXT(bytes, i, text.size(), character);
    if (!visit(character)) return;
  }
}

void AppendUnit(uint16_t unit, std::string& out) {
  out.push_back(static_cast<char>(unit >> 8));
  out.push_back(static_cast<char>(unit & 0xFF));
}

}  // namespace

bool IsUtf8(std::string_view text) { return base::FirstInvalidUtf8(base::AbslView(text)) == text.size(); }

std::optional<std::string> Utf8ToLatin1(std::string_view utf8) {
  std::string latin1;
  latin1.reserve(utf8.size());
  bool fits = true;
  ForEachUtf8(utf8, [&](UChar32 character) {
    fits = character >= 0 && character <= 0xFF;
    if (fits) latin1.push_back(static_cast<char>(character));
    return fits;
  });
  if (!fits) return std::nullopt;
  return latin1;
}

std::string Latin1ToUtf8(std::string_view latin1) {
  std::string utf8;
  utf8.reserve(latin1.size());
  for (char byte : latin1) AppendUtf8(static_cast<uint8_t>(byte), utf8);
  return utf8;
}

std::string Utf8ToUtf16BigEndian(std::string_view utf8) {
  std::string utf16;
  utf16.reserve(utf8.size() * 2);
  ForEachUtf8(utf8, [&](UChar32 character) {
    if (character <= 0xFFFF) {
      AppendUnit(static_cast<uint16_t>(character), utf16);
    } else {
      AppendUnit(U16_LEAD(character), utf16);
      AppendUnit(U16_TRAIL(character), utf16);
    }
    return true;
  });
  return utf16;
}

std::string Utf16ToUtf8(std::string_view utf16, ByteOrder order) {
  if (utf16.substr(0, 2) == "\xFE\xFF") {
    order = ByteOrder::kBigEndian;
    utf16.remove_prefix(2);
  } else if (utf16.substr(0, 2) == "\xFF\xFE") {
    order = ByteOrder::kLittleEndian;
    utf16.remove_prefix(2);
  }
  const size_t units = utf16.size() / 2;
  const auto unit = [&](size_t i) {
    const auto first = static_cast<uint8_t>(utf16[2 * i]);
    const auto second = static_cast<uint8_t>(utf16[2 * i + 1]);
    return order == ByteOrder::kBigEndian ? first << 8 | second : second << 8 | first;
  };
  std::string utf8;
  utf8.reserve(units);
  for (size_t i = 0; i < units; ++i) {
    UChar32 character = unit(i);
    if (U16_IS_LEAD(character) && i + 1 < units && U16_IS_TRAIL(unit(i + 1))) {
      character = U16_GET_SUPPLEMENTARY(character, unit(++i));
    } else if (U16_IS_SURROGATE(character)) {
      character = 0xFFFD;
    }
    AppendUtf8(character, utf8);
  }
  return utf8;
}

}  // namespace tessera::server
