#include "models/captions/mojibake.h"

#include <algorithm>
#include <optional>

#include "models/captions/caption_pattern.h"
#include "models/captions/charmaps.h"
#include "models/captions/html_entities.h"
#include "models/captions/mojibake_signs.h"
#include "models/captions/python_text.h"

namespace tessera::models::caption {
namespace {

// Every step shortens the text or makes it plainer, so a few steps suffice; the limits only guarantee termination.
constexpr int kMostSteps = 100;
constexpr int kDeepestNesting = 16;

// In the code below, bytes are code points below 256.

// A match of these patterns has at most six characters, so a search never takes too many steps.

// Matches UTF-8 in which a no-break space (A0) was turned into a space and whose result is a likely character.
const CaptionPattern& SimplifiedSpaces() {
  static const CaptionPattern pattern(
      u"([\xC2\xC3\xC5\xCE\xD0\xD9]|[\xE0-\xE3][\x80-\x84\x86-\x9F\xA1-\xBF]|\xF0[\x80-\xBF][\x80-\xBF]) "
      u"|([\xE2\xE3]) ([\x80-\x84\x86-\x9F\xA1-\xBF])|(\xF0) ([\x80-\xBF][\x80-\xBF])|(\xF0[\x80-\xBF]) ([\x80-\xBF])");
  return pattern;
}
// Of the groups before the space and of those after it, only those of the matching alternative are not empty.
constexpr std::u16string_view kRestoredSpace = u"$1$2$4$6\xA0$3$5$7";

// Matches UTF-8 and CESU-8 in which bytes are unknown (1A), or at most one of them is a question mark.
const CaptionPattern& LossySequences() {
  static const CaptionPattern pattern(
      u"[\xC2-\xDF]\x1A|[\xC2\xC3]\\?"
      u"|\xED[\xA0-\xAF][\x1A?]\xED[\xB0-\xBF][\x1A?\x80-\xBF]|\xED[\xA0-\xAF][\x1A?\x80-\xBF]\xED[\xB0-\xBF][\x1A?]"
      u"|[\xE0-\xEF][\x1A?][\x1A\x80-\xBF]|[\xE0-\xEF][\x1A\x80-\xBF][\x1A?]"
      u"|[\xF0-\xF4][\x1A?][\x1A\x80-\xBF][\x1A\x80-\xBF]|[\xF0-\xF4][\x1A\x80-\xBF][\x1A?][\x1A\x80-\xBF]"
      u"|[\xF0-\xF4][\x1A\x80-\xBF][\x1A\x80-\xBF][\x1A?]|\x1A");
  return pattern;
}

// Turns "Ã la" into "à la" with the space kept; "Ã s" and similar ones are Portuguese words that begin with "à".
std::u32string RestoreWordAGrave(std::u32string_view bytes) {
  constexpr std::u32string_view kPortuguese[] = {U" ", U"quele", U"quela", U"quilo", U"s "};
  std::u32string result;
  for (size_t i = 0; i < bytes.size(); ++i) {
    result += bytes[i];
    if (bytes[i] != 0xC3 || i + 1 == bytes.size() || bytes[i + 1] != U' ') continue;
    const std::u32string_view rest = bytes.substr(i + 2);
    if (std::none_of(std::begin(kPortuguese), std::end(kPortuguese),
                     [&](std::u32string_view word) { return rest.substr(0, word.size()) == word; })) {
      result += U"\xA0 ";
      ++i;
    }
  }
  return result;
}

std::optional<std::u32string> ReadAsUtf8(const Charmap& map, std::u32string_view text) {
  std::optional<std::u32string> bytes = map.Encode(text);
  if (!bytes) return std::nullopt;
  if (!map.is_mac_roman() && *SimplifiedSpaces().Occurs(*bytes)) {
    bytes = *SimplifiedSpaces().ReplaceAll(RestoreWordAGrave(*bytes), kRestoredSpace);
  }
  if (map.is_windows()) bytes = *LossySequences().ReplaceAll(*bytes, u"\xEF\xBF\xBD");
  const bool variants = bytes->find_first_of(U"\xED\xC0") != std::u32string::npos;
  return DecodeUtf8Strictly(std::string(bytes->begin(), bytes->end()), variants);
}

std::optional<std::u32string> Latin1AsWindows1252(std::u32string_view text) {
  const bool has_unassigned = text.find_first_of(U"\x81\x8D\x8F\x90\x9D") != std::u32string_view::npos;
  return has_unassigned ? std::nullopt : std::make_optional(FixC1Controls(text));
}

std::u32string FixEncodingNested(std::u32string_view text, int depth);

std::u32string FixOneStep(std::u32string_view text, int depth) {
  const bool ascii = std::all_of(text.begin(), text.end(), [](char32_t c) { return c < 0x80; });
  if (ascii || !LooksLikeMojibake(text)) return std::u32string(text);
  for (const Charmap& map : Charmap::All()) {
    if (auto decoded = ReadAsUtf8(map, text)) return *std::move(decoded);
  }
  if (depth < kDeepestNesting) {
    std::u32string fixed = ReplaceMisreadUtf8(text, [&](std::u32string_view part) {
      return part.size() < text.size() && LooksLikeMojibake(part) ? FixEncodingNested(part, depth + 1)
                                                                  : std::u32string(part);
    });
    if (fixed != text) return fixed;
  }
  const bool latin1 = std::all_of(text.begin(), text.end(), [](char32_t c) { return c < 0x100; });
  if (latin1) {
    const auto fixed = Latin1AsWindows1252(text);
    if (fixed && *fixed != text) return *fixed;
  }
  return FixC1Controls(text);
}

std::u32string FixEncodingNested(std::u32string_view text, int depth) {
  std::u32string current(text);
  for (int step = 0; step < kMostSteps; ++step) {
    std::u32string next = FixOneStep(current, depth);
    if (next == current) break;
    current = std::move(next);
  }
  return current;
}

}  // namespace

std::u32string FixEncoding(std::u32string_view text) { return FixEncodingNested(text, 0); }

std::u32string FixC1Controls(std::u32string_view text) {
  std::u32string result(text);
  std::transform(result.begin(), result.end(), result.begin(), Windows1252ToUnicode);
  return result;
}

}  // namespace tessera::models::caption
