// Lists characters that the reference knows (its categories are those of Unicode 16, its lower case that of Unicode 17)
// and the ICU of Debian 12 (Unicode 15) does not.
#pragma once

#include <span>

namespace tessera::models {

struct CharacterRange {
  char32_t first, last;
};

// Returns the newer characters of the general category with that letter, L, M, N, P or S, in ascending order; none for
// any other letter.
std::span<const CharacterRange> NewerCharacters(char category);

bool IsNewerCharacter(char32_t code, char category);

// Returns the lower case of a newer capital letter; every other character is returned unchanged.
char32_t NewerLowerCase(char32_t code);

}  // namespace tessera::models
