#include "models/captions/mojibake_signs.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "models/captions/caption_pattern.h"
#include "models/captions/charmaps.h"
#include "models/captions/python_text.h"

namespace tessera::models::caption {
namespace {

// Classes of characters, as in ftfy.
enum Class : uint32_t {
  kC1 = 1 << 0,  // control characters 80 to 9F
  kBad = 1 << 1,
  kLaw = 1 << 2,
  kCurrency = 1 << 3,
  kOpening = 1 << 4,  // punctuation
  kClosing = 1 << 5,
  kNumeric = 1 << 6,
  kFace = 1 << 7,   // letters used to draw faces
  kUpper = 1 << 8,  // accented capitals
  kLower = 1 << 9,
  kCommonUpper = 1 << 10,
  kCommonLower = 1 << 11,
  kBox = 1 << 12,
  kAsciiLetter = 1 << 13,
  kAsciiLower = 1 << 14,
  kSpace = 1 << 15,
  kWord = 1 << 16,
};

#define TESSERA_COMMON u"\u00A0\u00AD·´–—―…’"
#define TESSERA_C1 u"\x80-\x9F"
#define TESSERA_BAD u"¤¦¨ª¬¯¸ºƒˆˇ˘˛˜†‡‰⌐◊\uFFFD"
#define TESSERA_CURRENCY u"¢£¥₧€"
#define TESSERA_OPENING u"¡©«¿΄΅‘‚“„•‹\uF8FF"
#define TESSERA_CLOSING u"®»˝”›™"
#define TESSERA_NUMERIC u"±²³µ¹¼½¾×÷⁄№∂∆∏∑√∞∩∫≈≠≡≤≥"
#define TESSERA_UPPER u"ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑØÜÝĀĂĄĆČĎĐĒĖĘĚĞĢĪİĶĹĻĽŁŃŅŇŒŘŚŞŠŢŤŮŰŸŹŻŽҐ"

struct ClassCharacters {
  Class bit;
  std::u16string_view characters;
};

constexpr ClassCharacters kClasses[] = {
    {kBad, TESSERA_BAD},
    {kLaw, u"¶§"},
    {kCurrency, TESSERA_CURRENCY},
    {kOpening, TESSERA_OPENING},
    {kClosing, TESSERA_CLOSING},
    {kNumeric, TESSERA_NUMERIC},
    {kFace, u"°ÒÓÔÕÖÙÚÛÜòóôõöøùúûüŌŐŪŲ"},
    {kUpper, TESSERA_UPPER},
    {kLower, u"ßàáâãäåæçèéêëìíîïðñüāăąćčďđēėęěğģīįķĺļľłœŕśşšťźżžґﬁﬂ"},
    {kCommonUpper,
     u"ÞΆΈΉΊΌΎΏΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩΪΫЁЂЃЄЅІЇЈЉЊЋЌЍЎЏ"
     u"АБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯ"},
    {kCommonLower,
     u"άέήίΰαβγδεζηθικλμνξοπρςστυφχψω"
     u"абвгдежзийклмнопрстуфхцчшщъыьэюяѐёђѓєѕіїјљњћќѝўџ"},
    {kBox, u"│┌┐┘├┤┬┼═║╒╓╔╕╖╗╘╙╚╛╜╝╞╟╠╡╢╣╤╥╦╧╨╩╪╫╬▀▄█▌▐░▒▓"},
};

uint32_t ClassesOf(char32_t c) {
  using Entry = std::pair<char32_t, uint32_t>;
  static const std::vector<Entry> table = [] {
    std::vector<Entry> entries;
    for (const ClassCharacters& named : kClasses) {
      for (const char32_t member : named.characters) {
        const auto found = std::find_if(entries.begin(), entries.end(), [&](auto& e) { return e.first == member; });
        if (found == entries.end()) {
          entries.emplace_back(member, named.bit);
        } else {
          found->second |= named.bit;
        }
      }
    }
    std::sort(entries.begin(), entries.end());
    return entries;
  }();
  uint32_t classes = (IsSpace(c) ? kSpace : 0u) | (IsWord(c) ? kWord : 0u);
  if (c < 0x80) return classes | (IsAsciiLetter(c) ? kAsciiLetter : 0u) | (c >= 'a' && c <= 'z' ? kAsciiLower : 0u);
  if (c < 0xA0) classes |= kC1;
  const auto found = std::lower_bound(table.begin(), table.end(), Entry{c, 0});
  return found != table.end() && found->first == c ? classes | found->second : classes;
}

// Sequences of two or three characters; 0 ends a shorter one.
constexpr uint32_t kAnyAccented = kUpper | kLower;
constexpr uint32_t kMarks = kAnyAccented | kBox | kOpening | kClosing | kCurrency | kNumeric | kLaw;
constexpr std::array<uint32_t, 3> kUnlikely[] = {
    {kC1},
    {kBad | kMarks, kBad},
    {kAsciiLetter, kCommonLower | kCommonUpper, kBad},
    {kBad, kMarks},
    {kLower | kCommonLower | kBox | kClosing | kCurrency | kNumeric, kUpper},
    {kBox | kClosing | kCurrency | kNumeric, kLower},
    {kLower | kBox | kClosing, kCurrency},
    {kSpace, kUpper, kCurrency},
    {kUpper | kBox, kNumeric | kLaw},
    {kAnyAccented | kBox | kCurrency | kClosing, kOpening, kNumeric},
    {kAnyAccented | kCurrency | kNumeric | kBox | kLaw, kClosing, kOpening},
    {kCurrency | kNumeric | kBox, kOpening},
    {kAsciiLower, kUpper, kOpening | kCurrency},
    {kBox, kFace},
    {kAnyAccented | kCurrency | kNumeric | kOpening | kClosing | kLaw, kBox},
    {kBox, kClosing},
    {kAnyAccented, kOpening | kClosing, kWord},
};

// Characters that indicate mojibake only in exactly these sequences.
constexpr std::u16string_view kSequences =
    // ligature oe not before a letter; a degree sign after an accented capital
    u"[Œœ][^A-Za-z]|[" TESSERA_UPPER
    u"]°"
    // windows-1252
    u"|[ÂÃÎÐ][€œŠš¢£Ÿž\u00A0\u00AD®©°·»" TESSERA_OPENING TESSERA_CLOSING
    u"–—´]|×[²³]|à[²µ¹¼½¾]"
    u"|[ØÙ][" TESSERA_COMMON TESSERA_CURRENCY TESSERA_BAD TESSERA_NUMERIC TESSERA_OPENING
    u"ŸŠ®°µ»][ØÙ][" TESSERA_COMMON TESSERA_CURRENCY TESSERA_BAD TESSERA_NUMERIC TESSERA_OPENING
    u"ŸŠ®°µ»]"
    u"|Ã[\u00A0¡]|[a-z]\\s?[ÃÂ] |^[ÃÂ] |[a-z.,?!" TESSERA_CLOSING u"]Â[ " TESSERA_OPENING TESSERA_CLOSING
    u"]"
    // Mac Roman
    u"|√[±∂†≠®™´≤≥¥µø]|≈[°¢]|‚Ä[ìîïòôúùû†°¢π]|‚[âó][àä°ê]"
    // windows-1251
    u"|вЂ|ГўВЂВ.[A-Za-z ]|[ВГРС][" TESSERA_C1 TESSERA_BAD TESSERA_OPENING TESSERA_CLOSING TESSERA_CURRENCY
    u"°µ][ВГРС]"
    // windows-1253, windows-1257
    u"|β€[™\u00A0Ά\u00AD®°]|[ΒΓΞΟ][" TESSERA_C1 TESSERA_BAD TESSERA_OPENING TESSERA_CLOSING TESSERA_CURRENCY
    u"°][ΒΓΞΟ]|ā€";

#undef TESSERA_COMMON
#undef TESSERA_C1
#undef TESSERA_BAD
#undef TESSERA_CURRENCY
#undef TESSERA_OPENING
#undef TESSERA_CLOSING
#undef TESSERA_NUMERIC
#undef TESSERA_UPPER

// The roles that a character can have in misread UTF-8.
enum Role : uint32_t {
  kFirstOf2 = 1 << 0,
  kFirstOf3 = 1 << 1,
  kFirstOf4 = 1 << 2,
  kContinuation = 1 << 3,
  kStrictContinuation = 1 << 4,  // a continuation that rarely stands for itself
};

uint32_t RolesOf(char32_t c) {
  using Entry = std::pair<char32_t, uint32_t>;
  static const std::vector<Entry> table = [] {
    std::vector<Entry> entries = {{U' ', kContinuation}};  // a simplified no-break space
    for (const Charmap& map : Charmap::All()) {
      if (!map.is_latin1() && !map.is_windows()) continue;
      for (int byte = 0x80; byte <= 0xF3; ++byte) {
        const char32_t character = map.Decode(static_cast<unsigned char>(byte));
        uint32_t roles = 0;
        if (byte <= 0xBF) {
          const bool stands_for_itself =
              std::u32string_view(U"–—―‘’‚“”„•…").find(character) != std::u32string_view::npos;
          roles = kContinuation | (stands_for_itself ? 0u : kStrictContinuation);
        } else if (byte >= 0xC2 && byte <= 0xDF) {
          roles = kFirstOf2;
        } else if (byte >= 0xE0 && byte <= 0xEF) {
          roles = kFirstOf3;
        } else if (byte == 0xF0 || byte == 0xF3) {
          roles = kFirstOf4;
        }
        const auto found = std::find_if(entries.begin(), entries.end(), [&](auto& e) { return e.first == character; });
        if (found == entries.end()) {
          entries.emplace_back(character, roles);
        } else {
          found->second |= roles;
        }
      }
    }
    std::sort(entries.begin(), entries.end());
    return entries;
  }();
  const auto found = std::lower_bound(table.begin(), table.end(), Entry{c, 0});
  return found != table.end() && found->first == c ? found->second : 0;
}

// Returns the total length of the consecutive sequences that begin at `i`.
size_t MisreadLength(const std::vector<uint32_t>& roles, size_t i) {
  size_t end = i;
  while (end < roles.size()) {
    const uint32_t first = roles[end];
    const size_t length = first & kFirstOf2 ? 2 : first & kFirstOf3 ? 3 : first & kFirstOf4 ? 4 : 0;
    if (length == 0 || end + length > roles.size()) break;
    if (!std::all_of(roles.begin() + end + 1, roles.begin() + end + length,
                     [](uint32_t role) { return (role & kContinuation) != 0; })) {
      break;
    }
    end += length;
  }
  return end - i;
}

}  // namespace

bool LooksLikeMojibake(std::u32string_view text) {
  std::vector<uint32_t> classes(text.size());
  std::transform(text.begin(), text.end(), classes.begin(), ClassesOf);
  for (size_t i = 0; i < classes.size(); ++i) {
    for (const auto& sequence : kUnlikely) {
      size_t length = 0;
      while (length < sequence.size() && sequence[length] != 0 && i + length < classes.size() &&
             (classes[i + length] & sequence[length]) != 0) {
        ++length;
      }
      if (length == sequence.size() || sequence[length] == 0) return true;
    }
  }
  static const CaptionPattern sequences(kSequences);
  return *sequences.Occurs(text);  // a match has at most five characters, so the search never takes too many steps
}

std::u32string ReplaceMisreadUtf8(std::u32string_view text,
                                  const std::function<std::u32string(std::u32string_view)>& replace) {
  std::vector<uint32_t> roles(text.size());
  std::transform(text.begin(), text.end(), roles.begin(), RolesOf);
  std::u32string result;
  for (size_t i = 0; i < text.size();) {
    const bool within_garble = i > 0 && (roles[i - 1] & kStrictContinuation) != 0;
    const size_t length = within_garble ? 0 : MisreadLength(roles, i);
    if (length == 0) {
      result += text[i++];
    } else {
      result += replace(text.substr(i, length));
      i += length;
    }
  }
  return result;
}

}  // namespace tessera::models::caption
