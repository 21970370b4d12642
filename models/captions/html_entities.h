// Decodes HTML character references by the rules of the HTML standard as Python's html.unescape applies them. Pure and
// thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::models::caption {

// Returns the characters of a named reference, given without "&" and ";" ("eacute"), or nothing if there is no such
// name.
std::optional<std::u32string> NamedEntity(std::u32string_view name);

// Returns the value of decimal or hexadecimal digits, at most 0x110000, which stands for everything beyond Unicode.
char32_t ParseCharacterNumber(std::u32string_view digits, int base);

// Maps 0x80 to 0x9F as windows-1252; returns every other code point unchanged.
char32_t Windows1252ToUnicode(char32_t c);

// Decodes references with and without ";". Unknown references are left unchanged.
std::u32string UnescapeHtml(std::u32string_view text);

// Decodes only references that end in ";". In addition, names written entirely in capitals (&EACUTE;) become the
// capital of the lower-case name, as in ftfy's unescape_html.
std::u32string UnescapeUnambiguousHtml(std::u32string_view text);

}  // namespace tessera::models::caption
