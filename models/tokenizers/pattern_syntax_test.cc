#include "models/tokenizers/pattern_syntax.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/tokenizers/text_pattern.h"

namespace tessera::models {
namespace {

using testing::HasSubstr;

// Returns the parts of a text that an expression matches, each between bars.
std::string Matches(std::string_view expression, std::string_view text) {
  const absl::StatusOr<TextPattern> pattern = TextPattern::Regex(expression);
  EXPECT_TRUE(pattern.ok()) << pattern.status();
  if (!pattern.ok()) return "";
  std::vector<TextPattern::Match> matches;
  const std::vector<TracedChar> characters = TraceText(text, 0);
  EXPECT_TRUE(TextPattern::Finder(*pattern).Find(characters, matches).ok());
  NormalizedText found;
  for (const TextPattern::Match& match : matches) {
    for (size_t i = match.begin; i < match.end; ++i) found.Append(characters[i]);
    found.Append({'|', 0});
  }
  return found.text;
}

TEST(PatternSyntax, ReadsWhatTokenizersWrite) {
  EXPECT_EQ(Matches("[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+", "ab 12 ?!"), "ab|1|2|?!|");
  EXPECT_EQ(Matches("(?i:'s|'re)", "'S 'Re 't '\u017F"), "'S|'Re|'\u017F|");
  EXPECT_EQ(Matches("\\s+(?!\\S)|\\s+", "a   b  "), "  | |  |");
  EXPECT_EQ(Matches(" {2,}", "a   b c"), "   |");
  EXPECT_EQ(Matches("a{1,2}b{,1}c{2}", "aabcc acc"), "aabcc|acc|");
  EXPECT_EQ(Matches("[a-c\\-\\]]+", "xb-]y"), "b-]|");
  EXPECT_EQ(Matches("[^a-c]+", "abxyc"), "xy|");
  EXPECT_EQ(Matches("\\x41\\u0042\\x{1F431}", "AB\U0001F431"), "AB\U0001F431|");
  EXPECT_EQ(Matches("[\\p{Han}\\p{Hiragana}]+", "a\u4E2D\u3042b"), "\u4E2D\u3042|");
  EXPECT_EQ(Matches("\\P{L}+", "ab12"), "12|");
  EXPECT_EQ(Matches("\\p{^L}+", "ab12"), "12|");
  EXPECT_EQ(Matches("{}", "a{}b"), "{}|");
}

TEST(PatternSyntax, KnowsLettersThatAreNewerThanItsLibrary) {
  EXPECT_EQ(Matches("\\p{L}+", "\U00013D06a"), "\U00013D06a|");
  EXPECT_EQ(Matches("[^\\p{L}]+", "\U00013D06!"), "!|");
  EXPECT_EQ(Matches("\\P{N}+", "\U00010D41a"), "a|");
  EXPECT_EQ(Matches("\\w+", "\U00013D06\U00010D41 a"), "\U00013D06\U00010D41|a|");
  EXPECT_EQ(Matches("[^\\d]+", "\U00010D41a"), "a|");
}

TEST(PatternSyntax, NamesWhatItDoesNotRead) {
  const std::pair<const char*, const char*> kCases[] = {{"\\bword", "the escape \"\\\\b\" at byte 0"},
                                                        {"a^", "the anchor \"^\""},
                                                        {"a$", "the anchor \"$\""},
                                                        {"(?<=a)b", "the group \"(?<=a\""},
                                                        {"(a", "a group without its end"},
                                                        {"a)", "an unmatched"},
                                                        {"[a", "a class without its end"},
                                                        {"[]a]", "an empty class"},
                                                        {"[[:alpha:]]", "the class \"[:\""},
                                                        {"[a&&b]", "the class \"&&\""},
                                                        {"[b-a]", "a range without an end"},
                                                        {"a**", "a quantifier of a quantifier"},
                                                        {"a{2}?", "a quantifier of a quantifier"},
                                                        {"*a", "a bare quantifier"},
                                                        {"a{5000}", "a count beyond"},
                                                        {"a{3,2}", "a count beyond"},
                                                        {"\\p{Klingon}", "the property \"Klingon\""},
                                                        {"\\pL", "without braces"},
                                                        {"\\xFF", "a malformed number"},
                                                        {"\\u12", "a malformed number"},
                                                        {"\\", "a backslash at its end"},
                                                        {"\\1", "the escape"},
                                                        {"(?i)a", "the group"},
                                                        {"\xFF", "not UTF-8"}};
  for (const auto& [expression, error] : kCases) {
    const absl::StatusOr<std::string> translated = TranslateExpression(expression);
    EXPECT_EQ(translated.status().code(), absl::StatusCode::kInvalidArgument) << expression;
    EXPECT_THAT(std::string(translated.status().message()), HasSubstr(error)) << expression;
  }
  EXPECT_FALSE(TranslateExpression(std::string(100, '(')).ok());
  EXPECT_FALSE(TranslateExpression(std::string(20000, 'a')).ok());
}

}  // namespace
}  // namespace tessera::models
