// Maps each byte to the printable character that stands for it in byte-level vocabularies.
#pragma once

#include <array>

namespace tessera::models {

// Printable bytes of Latin-1 map to the character of the same number; the others map to the characters from U+0100 on.
constexpr std::array<char32_t, 256> ByteCharacters() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    characters[byte] = printable ? byte : next++;
  }
  return characters;
}

}  // namespace tessera::models
