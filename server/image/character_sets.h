// Conversions between the character sets of image metadata. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera::server {

enum class ByteOrder : bool { kLittleEndian, kBigEndian };

[[nodiscard]] bool IsUtf8(std::string_view text);

// Returns nullopt if a character is outside Latin-1. `utf8` must be valid UTF-8.
[[nodiscard]] std::optional<std::string> Utf8ToLatin1(std::string_view utf8);
[[nodiscard]] std::string Latin1ToUtf8(std::string_view latin1);

// `utf8` must be valid UTF-8. No byte order mark is written.
[[nodiscard]] std::string Utf8ToUtf16BigEndian(std::string_view utf8);

// Lone surrogates become U+FFFD; an odd last byte is dropped. A byte order mark overrides `order` and is dropped.
[[nodiscard]] std::string Utf16ToUtf8(std::string_view utf16, ByteOrder order);

}  // namespace tessera::server
