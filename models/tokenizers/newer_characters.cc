#include "models/tokenizers/newer_characters.h"

#include <algorithm>

namespace tessera::models {
namespace {

constexpr CharacterRange kLetters[] = {{0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
                                       {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
                                       {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
                                       {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
                                       {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
                                       {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
constexpr CharacterRange kMarkCharacters[] = {
    {0x897, 0x897},     {0x10D69, 0x10D6D}, {0x10EFC, 0x10EFC}, {0x113B8, 0x113C0}, {0x113C2, 0x113C2},
    {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D0}, {0x113D2, 0x113D2}, {0x113E1, 0x113E2},
    {0x11F5A, 0x11F5A}, {0x1611E, 0x1612F}, {0x1E5EE, 0x1E5EF}};
constexpr CharacterRange kNumbers[] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x16130, 0x16139},
                                       {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9}, {0x1E5F1, 0x1E5FA}};
constexpr CharacterRange kPunctuation[] = {{0x1B4E, 0x1B4F},   {0x1B7F, 0x1B7F},   {0x10D6E, 0x10D6E},
                                           {0x113D4, 0x113D5}, {0x113D7, 0x113D8}, {0x11BE1, 0x11BE1},
                                           {0x16D6D, 0x16D6F}, {0x1E5FF, 0x1E5FF}};
constexpr CharacterRange kSymbols[] = {{0x2427, 0x2429},   {0x2FFC, 0x2FFF},   {0x31E4, 0x31E5},   {0x31EF, 0x31EF},
                                       {0x10D8E, 0x10D8F}, {0x1CC00, 0x1CCEF}, {0x1CD00, 0x1CEB3}, {0x1F8B2, 0x1F8BB},
                                       {0x1F8C0, 0x1F8C1}, {0x1FA89, 0x1FA89}, {0x1FA8F, 0x1FA8F}, {0x1FABE, 0x1FABE},
                                       {0x1FAC6, 0x1FAC6}, {0x1FADC, 0x1FADC}, {0x1FADF, 0x1FADF}, {0x1FAE9, 0x1FAE9},
                                       {0x1FBCB, 0x1FBEF}};

// Ranges of capital letters and the lower case of the first one; the lower case of the others follows in order.
constexpr struct {
  CharacterRange capitals;
  char32_t lower;
} kCapitals[] = {{{0x1C89, 0x1C89}, 0x1C8A},   {{0xA7CB, 0xA7CB}, 0x264},  {{0xA7CC, 0xA7CC}, 0xA7CD},
                 {{0xA7CE, 0xA7CE}, 0xA7CF},   {{0xA7D2, 0xA7D2}, 0xA7D3}, {{0xA7D4, 0xA7D4}, 0xA7D5},
                 {{0xA7DA, 0xA7DA}, 0xA7DB},   {{0xA7DC, 0xA7DC}, 0x19B},  {{0x10D50, 0x10D65}, 0x10D70},
                 {{0x16EA0, 0x16EB8}, 0x16EBB}};

}  // namespace

std::span<const CharacterRange> NewerCharacters(char category) {
  if (category == 'L') return kLetters;
  if (category == 'M') return kMarkCharacters;
  if (category == 'N') return kNumbers;
  if (category == 'P') return kPunctuation;
  if (category == 'S') return kSymbols;
  return {};
}

bool IsNewerCharacter(char32_t code, char category) {
  const std::span<const CharacterRange> ranges = NewerCharacters(category);
  return std::any_of(ranges.begin(), ranges.end(),
                     [code](const CharacterRange& range) { return code >= range.first && code <= range.last; });
}

char32_t NewerLowerCase(char32_t code) {
  if (code < kCapitals[0].capitals.first) return code;
  for (const auto& [capitals, lower] : kCapitals) {
    if (code >= capitals.first && code <= capitals.last) return lower + (code - capitals.first);
  }
  return code;
}

}  // namespace tessera::models
