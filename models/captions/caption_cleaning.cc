#include "models/captions/caption_cleaning.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/macros/status_macros.h"
#include "models/captions/caption_pattern.h"
#include "models/captions/html_entities.h"
#include "models/captions/html_text.h"
#include "models/captions/python_text.h"
#include "models/captions/text_fixing.h"

namespace tessera::models {
namespace {

using caption::CaptionPattern;
using caption::IsAsciiHexDigit;

struct Rule {
  CaptionPattern pattern;
  std::u16string_view replacement;
};
using Rules = std::vector<Rule>;

// The patterns are those of the reference, changed where ICU, which tries a match from every character, would need a
// quadratic number of steps: a run of characters that has failed is not searched again from its middle.

#define TESSERA_FILE_TYPES u"(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)"
#define TESSERA_HOST_CHARACTER u"[a-zA-Z0-9.\\-]"
// A URL: the scheme, or a host in a well-known domain with its path, not followed by an "@". If a run of characters of
// a host is none, neither is any part of it that begins later, so the run is matched as a whole, but for a scheme at
// its end. It is the group that the replacement keeps.
#define TESSERA_URL(scheme) \
  u"\\b(?:" scheme u":(?:/{1,3}|[a-zA-Z0-9%])|" TESSERA_HOST_CHARACTER                                        \
  u"+\\.(?:com|co|ru|net|org|edu|gov|it)[\\w/\\-]*\\b/?(?!@)|(" TESSERA_HOST_CHARACTER u"*\\b(?=" scheme u":)|" \
  TESSERA_HOST_CHARACTER u"++))"

const Rules& UrlRules() {
  static const Rules rules = {
      {CaptionPattern(TESSERA_URL(u"https?")), u"$1"},
      {CaptionPattern(TESSERA_URL(u"www")), u"$1"},
  };
  return rules;
}

// Applied between the removal of HTML and the repair of the text.
const Rules& MarkRules() {
  static const Rules rules = {
      {CaptionPattern(u"@\\w+"), u""},
      {CaptionPattern(u"[\u31C0-\u9FFF]+"), u""},  // strokes, enclosed forms, ideographs
      {CaptionPattern(u"[\\-\u058A\u05BE\u1400\u1806\u2010-\u2015\u2E17\u2E1A\u2E3A\u2E3B\u2E40\u301C\u3030\u30A0"
                      u"\uFE31\uFE32\uFE58\uFE63\uFF0D]+"),
       u"-"},  // dashes of every kind
      {CaptionPattern(u"[`´«»“”¨]"), u"\""},
      {CaptionPattern(u"[‘’]"), u"'"},
      {CaptionPattern(u"&quot;?"), u""},
      {CaptionPattern(u"&amp"), u""},
      {CaptionPattern(u"\\d{1,3}\\.\\d{1,3}\\.\\d{1,3}\\.\\d{1,3}"), u" "},  // IP addresses
      {CaptionPattern(u"\\d:\\d\\d\\s+$"), u""},                             // ids of articles
      {CaptionPattern(u"\\\\n"), u" "},
      {CaptionPattern(u"#\\d{1,3}\\b"), u""},
      {CaptionPattern(u"#\\d{5}\\d*\\b"), u""},
      {CaptionPattern(u"\\b\\d{6}\\d*\\b"), u""},
      {CaptionPattern(u"(?<!\\S)\\S+\\." TESSERA_FILE_TYPES), u""},
      {CaptionPattern(u"[\"'][\"']+"), u"\""},
      {CaptionPattern(u"\\.\\.+"), u" "},
      {CaptionPattern(u"[#®•©™\\&@·º½¾¿¡§~)(\\]\\[}{|\\\\/*]+"), u" "},
      {CaptionPattern(u"(?<!\\s)\\s+\\.\\s+"), u" "},
  };
  return rules;
}

// Applied after the repair of the text.
const Rules& PhraseRules() {
  static const Rules rules = {
      {CaptionPattern(u"\\b[a-zA-Z]{1,3}\\d{3,15}\\b"), u""},  // jc6640
      {CaptionPattern(u"\\b[a-zA-Z]+\\d+[a-zA-Z]+\\b"), u""},  // jc6640vc
      {CaptionPattern(u"\\b\\d+[a-zA-Z]+\\d+\\b"), u""},       // 6640vc231
      {CaptionPattern(u"(?:worldwide\\s+)?(?:free\\s+)?shipping"), u""},
      {CaptionPattern(u"(?:free\\s)?download(?:\\sfree)?"), u""},
      {CaptionPattern(u"\\bclick\\b\\s(?:for|on)\\s\\w+"), u""},
      {CaptionPattern(u"\\b" TESSERA_FILE_TYPES u"(?:\\simages?)?"), u""},
      {CaptionPattern(u"\\bpage\\s+\\d+\\b"), u""},
      {CaptionPattern(u"\\b\\d*[a-zA-Z]+\\d+[a-zA-Z]+\\d[a-zA-Z\\d]*\\b"), u" "},  // j2d1a2a
      {CaptionPattern(u"\\b\\d+(?:\\.\\d*)?[xх×]\\d+(?:\\.\\d*)?\\b"), u""},       // 1024x768; the second x is Cyrillic
      {CaptionPattern(u"\\b\\s+:\\s+"), u": "},
  };
  return rules;
}

#undef TESSERA_FILE_TYPES
#undef TESSERA_HOST_CHARACTER
#undef TESSERA_URL

absl::StatusOr<std::u32string> Apply(const Rules& rules, std::u32string text) {
  for (const Rule& rule : rules) {
    ASSIGN_OR_RETURN(text, rule.pattern.ReplaceAll(text, rule.replacement));
  }
  return text;
}

// Decodes percent escapes and "+" of URLs. The bytes of a run of ASCII characters are read together as UTF-8.
std::u32string UnquoteUrl(std::u32string_view text) {
  std::u32string result;
  std::string run;
  const auto flush = [&] {
    result += caption::DecodeUtf8(run);
    run.clear();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i];
    if (c >= 0x80) {
      flush();
      result += c;
    } else if (c == U'%' && i + 2 < text.size() && IsAsciiHexDigit(text[i + 1]) && IsAsciiHexDigit(text[i + 2])) {
      run += static_cast<char>(caption::ParseCharacterNumber(text.substr(i + 1, 2), 16));
      i += 2;
    } else {
      run += c == U'+' ? ' ' : static_cast<char>(c);
    }
  }
  flush();
  return result;
}

std::u32string ReplaceLiteral(std::u32string_view text, std::u32string_view from, std::u32string_view to) {
  std::u32string result;
  size_t done = 0;
  for (size_t found; (found = text.find(from, done)) != std::u32string_view::npos; done = found + from.size()) {
    result.append(text, done, found - done);
    result += to;
  }
  result.append(text, done);
  return result;
}

// Replaces hyphens and underscores by spaces if there are more than three of them: this-is-my-cute-cat.
std::u32string SplitSlug(std::u32string text) {
  constexpr int kMostInText = 3;
  const auto joins = [](char32_t c) { return c == U'-' || c == U'_'; };
  if (std::count_if(text.begin(), text.end(), joins) > kMostInText) {
    std::replace_if(text.begin(), text.end(), joins, U' ');
  }
  return text;
}

// Adds a space after every ",", "." or "/" that is not preceded by a digit and is followed by a word.
std::u32string SpaceAfterMarks(std::u32string_view text) {
  std::u32string result;
  for (size_t i = 0; i < text.size(); ++i) {
    result += text[i];
    if (i + 2 >= text.size() || caption::IsDigit(text[i])) continue;
    const char32_t mark = text[i + 1];
    if ((mark == U',' || mark == U'.' || mark == U'/') && caption::IsWord(text[i + 2])) {
      result += mark;
      result += U' ';
      ++i;
    }
  }
  return result;
}

std::u32string JoinSpaces(std::u32string_view text) {
  std::u32string result;
  bool in_space = false;
  for (const char32_t c : text) {
    const bool space = caption::IsSpace(c);
    if (!space || !in_space) result += space ? U' ' : c;
    in_space = space;
  }
  return result;
}

// Removes quotes around the whole text, then one stray mark at each end. A single word that begins with "." is removed
// altogether.
std::u32string_view TrimMarks(std::u32string_view text) {
  const auto is_one_of = [](char32_t c, std::u32string_view marks) { return marks.find(c) != marks.npos; };
  if (text.size() > 2 && is_one_of(text.front(), U"\"'") && is_one_of(text.back(), U"\"'")) {
    text = text.substr(1, text.size() - 2);
  }
  if (!text.empty() && is_one_of(text.front(), U"'_,-:;")) text.remove_prefix(1);
  if (!text.empty() && is_one_of(text.back(), U"'_,-:+")) text.remove_suffix(1);
  if (text.size() > 1 && text.front() == U'.' && std::none_of(text.begin(), text.end(), caption::IsSpace)) return {};
  return caption::Strip(text);
}

absl::StatusOr<std::u32string> CleanOnce(std::u32string_view prompt) {
  std::u32string text = UnquoteUrl(prompt);
  text = caption::ToLower(caption::Strip(text));
  text = ReplaceLiteral(text, U"<person>", U"person");
  ASSIGN_OR_RETURN(text, Apply(UrlRules(), std::move(text)));
  text = caption::HtmlText(text);
  ASSIGN_OR_RETURN(text, Apply(MarkRules(), std::move(text)));
  text = SplitSlug(std::move(text));
  text = caption::FixText(text);
  text = caption::UnescapeHtml(caption::UnescapeHtml(text));
  ASSIGN_OR_RETURN(text, Apply(PhraseRules(), std::move(text)));
  text = JoinSpaces(SpaceAfterMarks(text));
  return std::u32string(TrimMarks(text));
}

}  // namespace

absl::StatusOr<std::string> CleanCaption(std::string_view prompt) {
  ASSIGN_OR_RETURN(const std::u32string once, CleanOnce(caption::DecodeUtf8(prompt)));
  ASSIGN_OR_RETURN(const std::u32string twice, CleanOnce(once));
  return caption::EncodeUtf8(twice);
}

std::string PlainCaption(std::string_view prompt) {
  return caption::EncodeUtf8(caption::Strip(caption::ToLower(caption::DecodeUtf8(prompt))));
}

}  // namespace tessera::models
