// Characters that the reference knows (its categories are of Unicode 16, its lower case is of 17) and the ICU of Debian
// 12 (Unicode 15) does not.
#pragma once

#include <span>

namespace tessera::models {

struct CharacterRange {
  char32_t first, last;
};

// Of the general category whose letter that is: L, M, N, P or S; none of any other. Ascending.
std::span<const CharacterRange> NewerCharacters(char category);

bool IsNewerCharacter(char32_t code, char category);

// The lower case of a newer capital letter; every other character is its own.
char32_t NewerLowerCase(char32_t code);

}  // namespace tessera::models
