#include "models/captions/linear_regex.h"

#include <gtest/gtest.h>

#include "models/captions/python_text.h"

namespace tessera::models::caption {
namespace {

std::string Replace(std::u32string_view pattern, std::string_view text, std::u32string_view by = U"_") {
  return EncodeUtf8(LinearRegex(pattern).ReplaceAll(DecodeUtf8(text), by));
}

TEST(LinearRegex, TakesTheLeftmostMatchAndTheFirstAlternative) { EXPECT_EQ(Replace(U"ab|abc|b", "abcb"), "_c_"); }

TEST(LinearRegex, RepeatsAsOftenAsItCan) {
  EXPECT_EQ(Replace(U"a{2,3}", "a aa aaa aaaa aaaaa"), "a _ _ _a __");
  EXPECT_EQ(Replace(U"\\d{3,}", "12 123 12345"), "12 _ _");
  EXPECT_EQ(Replace(U"a?b+c*", "b abbcc c"), "_ _ c");
}

TEST(LinearRegex, GivesBackWhatTheRestNeeds) {
  EXPECT_EQ(Replace(U"\\S+\\.(?:jpg|png)", "a.jpg.png.txt"), "_.txt");
  EXPECT_EQ(Replace(U"[a-z]+x\\b", "axxay axx"), "axxay _");
}

TEST(LinearRegex, ClassesAreThoseOfPython) {
  EXPECT_EQ(Replace(U"\\w", "é٣_Ⅷ²\u0301-"), "_____\u0301-");
  EXPECT_EQ(Replace(U"\\s", "\u3000\u00A0\u001C\u200B"), "___\u200B");
  EXPECT_EQ(Replace(U"\\d", "1٣²"), "__²");
  EXPECT_EQ(Replace(U"[\\D]", "1a"), "1_");
  EXPECT_EQ(Replace(U"[^a-c\\-]", "abcd-"), "abc_-");
}

TEST(LinearRegex, AnchorsAndBoundariesLookAtTheWholeText) {
  EXPECT_EQ(Replace(U"^a", "aa"), "_a");
  EXPECT_EQ(Replace(U"a$", "aa\n"), "a_\n");
  EXPECT_EQ(Replace(U"\\ba\\b", "a aa a"), "_ aa _");
  EXPECT_EQ(Replace(U"a(?!b)", "abaca"), "ab_c_");
}

TEST(LinearRegex, SearchesInLinearTime) {
  const std::u32string text(200000, U'a');
  EXPECT_FALSE(LinearRegex(U"(?:a+)+b").Find(text).has_value());
  EXPECT_FALSE(LinearRegex(U"\\w+\\w+\\w+@").Find(text).has_value());
}

TEST(LinearRegexDeathTest, RefusesAPatternThatMatchesNothing) {
  EXPECT_DEATH(LinearRegex(U"a*"), "");
  EXPECT_DEATH(LinearRegex(U"(a"), "");
}

}  // namespace
}  // namespace tessera::models::caption
