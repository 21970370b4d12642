#include "models/captions/text_fixing.h"

#include <algorithm>
#include <iterator>

#include "models/captions/html_entities.h"
#include "models/captions/mojibake.h"
#include "models/captions/python_text.h"

namespace tessera::models::caption {
namespace {

constexpr int kMostRounds = 100;  // two or three suffice; the limit only guarantees termination
constexpr size_t kLongestSegment = 1000000;

struct Ligature {
  char32_t character;
  std::u32string_view letters;
};

constexpr Ligature kLigatures[] = {
    {U'Ĳ', U"IJ"},  {U'ĳ', U"ij"},  {U'ŉ', U"ʼn"}, {U'Ǳ', U"DZ"}, {U'ǲ', U"Dz"}, {U'ǳ', U"dz"},
    {U'Ǆ', U"DŽ"},  {U'ǅ', U"Dž"},  {U'ǆ', U"dž"}, {U'Ǉ', U"LJ"}, {U'ǈ', U"Lj"}, {U'ǉ', U"lj"},
    {U'Ǌ', U"NJ"},  {U'ǋ', U"Nj"},  {U'ǌ', U"nj"}, {U'ﬀ', U"ff"}, {U'ﬁ', U"fi"}, {U'ﬂ', U"fl"},
    {U'ﬃ', U"ffi"}, {U'ﬄ', U"ffl"}, {U'ﬅ', U"ſt"}, {U'ﬆ', U"st"},
};

bool IsRemovedControl(char32_t c) {
  return c <= 0x08 || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || (c >= 0x206A && c <= 0x206F) ||
         c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFC);
}

// Replaces ligatures, widths and quotes. The order matters only between characters, never within one.
std::u32string ReplaceCharacters(std::u32string_view text) {
  std::u32string result;
  for (const char32_t c : text) {
    const auto* const ligature = std::find_if(std::begin(kLigatures), std::end(kLigatures),
                                              [c](const Ligature& candidate) { return candidate.character == c; });
    if (ligature != std::end(kLigatures)) {
      result += ligature->letters;
    } else if (c == 0x3000) {
      result += U' ';
    } else if (c >= 0xFF01 && c <= 0xFFEF) {
      result += ToNfkc(std::u32string_view(&c, 1));
    } else {
      result += c;
    }
  }
  for (char32_t& c : result) {
    if (c == 0x2BC || (c >= 0x2018 && c <= 0x201B)) c = U'\'';
    if (c >= 0x201C && c <= 0x201F) c = U'"';
  }
  return result;
}

std::u32string FixLineBreaks(std::u32string_view text) {
  std::u32string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i];
    if (c == U'\r' && i + 1 < text.size() && text[i + 1] == U'\n') continue;
    result += c == U'\r' || c == 0x2028 || c == 0x2029 || c == 0x85 ? U'\n' : c;
  }
  return result;
}

// Removes ESC [ numbers letter, the escapes that colour a terminal.
std::u32string RemoveTerminalEscapes(std::u32string_view text) {
  std::u32string result;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == 0x1B && i + 1 < text.size() && text[i + 1] == U'[') {
      size_t end = i + 2;
      while (end < text.size() && (IsDigit(text[end]) || text[end] == U';')) ++end;
      if (end < text.size() && IsAsciiLetter(text[end])) {
        i = end + 1;
        continue;
      }
    }
    result += text[i++];
  }
  return result;
}

std::u32string FixSegment(std::u32string_view segment, bool unescape_html) {
  std::u32string text(segment);
  for (int round = 0; round < kMostRounds; ++round) {
    const std::u32string before = text;
    if (unescape_html) text = UnescapeUnambiguousHtml(text);
    text = FixC1Controls(FixEncoding(text));
    text = RemoveTerminalEscapes(FixLineBreaks(ReplaceCharacters(text)));
    std::erase_if(text, IsRemovedControl);
    text = ToNfc(text);
    if (text == before) break;
  }
  return text;
}

}  // namespace

std::u32string FixText(std::u32string_view text) {
  std::u32string result;
  bool unescape_html = true;
  for (size_t begin = 0; begin < text.size();) {
    const size_t line_feed = text.find(U'\n', begin);
    const size_t line_end = line_feed == std::u32string_view::npos ? text.size() : line_feed + 1;
    const std::u32string_view segment = text.substr(begin, std::min(line_end - begin, kLongestSegment));
    if (segment.find(U'<') != std::u32string_view::npos) unescape_html = false;
    result += FixSegment(segment, unescape_html);
    begin += segment.size();
  }
  return result;
}

}  // namespace tessera::models::caption
