// HTML character references, decoded by the rules of the HTML standard as Python's html.unescape applies them.
// Pure and thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::models::caption {

// The characters of a named reference, given without "&" and ";" ("eacute"), or nothing if there is no such name.
std::optional<std::u32string> NamedEntity(std::u32string_view name);

// Value of decimal or hexadecimal digits, at most 0x110000, which stands for everything beyond Unicode.
char32_t ParseCharacterNumber(std::u32string_view digits, int base);

// What the bytes 0x80 to 0x9F are in windows-1252; every other code point is returned as it is.
char32_t Windows1252ToUnicode(char32_t c);

// Decodes references with and without ";". Unknown ones stay.
std::u32string UnescapeHtml(std::u32string_view text);

// Decodes only references that end in ";", and in addition names written in capitals throughout (&EACUTE;) as the
// capital of the lower-case name, as ftfy's unescape_html does.
std::u32string UnescapeUnambiguousHtml(std::u32string_view text);

}  // namespace tessera::models::caption
