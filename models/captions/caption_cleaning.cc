#include "models/captions/caption_cleaning.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "models/captions/html_entities.h"
#include "models/captions/html_text.h"
#include "models/captions/linear_regex.h"
#include "models/captions/python_text.h"
#include "models/captions/text_fixing.h"

namespace tessera::models {
namespace {

using caption::IsAsciiHexDigit;
using caption::LinearRegex;

struct Rule {
  LinearRegex pattern;
  std::u32string_view replacement;
};
using Rules = std::vector<Rule>;

#define TESSERA_FILE_TYPES U"(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)"
// A host in a well-known domain with its path, not followed by an "@".
#define TESSERA_HOST U"[a-zA-Z0-9.\\-]+\\.(?:com|co|ru|net|org|edu|gov|it)[\\w/\\-]*\\b/?(?!@)"

const Rules& UrlRules() {
  static const Rules rules = {
      {LinearRegex(U"\\b(?:https?:(?:/{1,3}|[a-zA-Z0-9%])|" TESSERA_HOST U")"), U""},
      {LinearRegex(U"\\b(?:www:(?:/{1,3}|[a-zA-Z0-9%])|" TESSERA_HOST U")"), U""},
  };
  return rules;
}

// Applied between the removal of HTML and the repair of the text.
const Rules& MarkRules() {
  static const Rules rules = {
      {LinearRegex(U"@\\w+"), U""},
      {LinearRegex(U"[\u31C0-\u9FFF]+"), U""},  // strokes, enclosed forms, ideographs
      {LinearRegex(U"[\\-\u058A\u05BE\u1400\u1806\u2010-\u2015\u2E17\u2E1A\u2E3A\u2E3B\u2E40\u301C\u3030\u30A0"
                   U"\uFE31\uFE32\uFE58\uFE63\uFF0D]+"),
       U"-"},  // dashes of every kind
      {LinearRegex(U"[`´«»“”¨]"), U"\""},
      {LinearRegex(U"[‘’]"), U"'"},
      {LinearRegex(U"&quot;?"), U""},
      {LinearRegex(U"&amp"), U""},
      {LinearRegex(U"\\d{1,3}\\.\\d{1,3}\\.\\d{1,3}\\.\\d{1,3}"), U" "},  // IP addresses
      {LinearRegex(U"\\d:\\d\\d\\s+$"), U""},                             // ids of articles
      {LinearRegex(U"\\\\n"), U" "},
      {LinearRegex(U"#\\d{1,3}\\b"), U""},
      {LinearRegex(U"#\\d{5,}\\b"), U""},
      {LinearRegex(U"\\b\\d{6,}\\b"), U""},
      {LinearRegex(U"\\S+\\." TESSERA_FILE_TYPES), U""},
      {LinearRegex(U"[\"']{2,}"), U"\""},
      {LinearRegex(U"\\.{2,}"), U" "},
      {LinearRegex(U"[#®•©™&@·º½¾¿¡§~)(\\][}{|\\\\/*]+"), U" "},
      {LinearRegex(U"\\s+\\.\\s+"), U" "},
  };
  return rules;
}

// Applied after the repair of the text.
const Rules& PhraseRules() {
  static const Rules rules = {
      {LinearRegex(U"\\b[a-zA-Z]{1,3}\\d{3,15}\\b"), U""},  // jc6640
      {LinearRegex(U"\\b[a-zA-Z]+\\d+[a-zA-Z]+\\b"), U""},  // jc6640vc
      {LinearRegex(U"\\b\\d+[a-zA-Z]+\\d+\\b"), U""},       // 6640vc231
      {LinearRegex(U"(?:worldwide\\s+)?(?:free\\s+)?shipping"), U""},
      {LinearRegex(U"(?:free\\s)?download(?:\\sfree)?"), U""},
      {LinearRegex(U"\\bclick\\b\\s(?:for|on)\\s\\w+"), U""},
      {LinearRegex(U"\\b" TESSERA_FILE_TYPES U"(?:\\simages?)?"), U""},
      {LinearRegex(U"\\bpage\\s+\\d+\\b"), U""},
      {LinearRegex(U"\\b\\d*[a-zA-Z]+\\d+[a-zA-Z]+\\d+[a-zA-Z\\d]*\\b"), U" "},  // j2d1a2a
      {LinearRegex(U"\\b\\d+\\.?\\d*[xх×]\\d+\\.?\\d*\\b"), U""},                // 1024x768; the second x is Cyrillic
      {LinearRegex(U"\\b\\s+:\\s+"), U": "},
  };
  return rules;
}

#undef TESSERA_FILE_TYPES
#undef TESSERA_HOST

std::u32string Apply(const Rules& rules, std::u32string text) {
  for (const Rule& rule : rules) text = rule.pattern.ReplaceAll(text, rule.replacement);
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

std::u32string CleanOnce(std::u32string_view prompt) {
  std::u32string text = UnquoteUrl(prompt);
  text = caption::ToLower(caption::Strip(text));
  text = ReplaceLiteral(text, U"<person>", U"person");
  text = Apply(UrlRules(), std::move(text));
  text = caption::HtmlText(text);
  text = Apply(MarkRules(), std::move(text));
  text = SplitSlug(std::move(text));
  text = caption::FixText(text);
  text = caption::UnescapeHtml(caption::UnescapeHtml(text));
  text = Apply(PhraseRules(), std::move(text));
  text = JoinSpaces(SpaceAfterMarks(text));
  return std::u32string(TrimMarks(text));
}

}  // namespace

std::string CleanCaption(std::string_view prompt) {
  return caption::EncodeUtf8(CleanOnce(CleanOnce(caption::DecodeUtf8(prompt))));
}

std::string PlainCaption(std::string_view prompt) {
  return caption::EncodeUtf8(caption::Strip(caption::ToLower(caption::DecodeUtf8(prompt))));
}

}  // namespace tessera::models
