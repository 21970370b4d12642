#include "models/captions/caption_pattern.h"

#include <gtest/gtest.h>

#include "models/captions/python_text.h"

namespace tessera::models::caption {
namespace {

std::string Replace(std::u16string_view pattern, std::string_view text, std::u16string_view by = u"_") {
  return EncodeUtf8(CaptionPattern(pattern).ReplaceAll(DecodeUtf8(text), by).value());
}

TEST(CaptionPattern, TakesTheLeftmostMatchAndTheFirstAlternative) { EXPECT_EQ(Replace(u"ab|abc|b", "abcb"), "_c_"); }

TEST(CaptionPattern, RepeatsAsOftenAsItCan) {
  EXPECT_EQ(Replace(u"a{2,3}", "a aa aaa aaaa aaaaa"), "a _ _ _a __");
  EXPECT_EQ(Replace(u"\\d{3,}", "12 123 12345"), "12 _ _");
  EXPECT_EQ(Replace(u"a?b+c*", "b abbcc c"), "_ _ c");
}

TEST(CaptionPattern, GivesBackWhatTheRestNeeds) {
  EXPECT_EQ(Replace(u"\\S+\\.(?:jpg|png)", "a.jpg.png.txt"), "_.txt");
  EXPECT_EQ(Replace(u"[a-z]+x\\b", "axxay axx"), "axxay _");
}

TEST(CaptionPattern, ClassesAreThoseOfPython) {
  EXPECT_EQ(Replace(u"\\w", "é٣_Ⅷ²\u0301-"), "_____\u0301-");
  EXPECT_EQ(Replace(u"\\s", "\u3000\u00A0\u001C\u200B"), "___\u200B");
  EXPECT_EQ(Replace(u"\\d", "1٣²"), "__²");
  EXPECT_EQ(Replace(u"[\\D]", "1a"), "1_");
  EXPECT_EQ(Replace(u"[^a-c\\-]", "abcd-"), "abc_-");
}

TEST(CaptionPattern, AnchorsAndBoundariesLookAtTheWholeText) {
  EXPECT_EQ(Replace(u"^a", "aa"), "_a");
  EXPECT_EQ(Replace(u"a$", "aa\n"), "a_\n");
  EXPECT_EQ(Replace(u"\\ba\\b", "a aa a"), "_ aa _");
  EXPECT_EQ(Replace(u"a(?!b)", "abaca"), "ab_c_");
}

TEST(CaptionPattern, KeepsTheGroupThatTheReplacementNames) {
  EXPECT_EQ(Replace(u"ab|(a+)", "aab a ab", u"$1"), "aab a ");
}

TEST(CaptionPattern, RefusesASearchThatTakesTooManySteps) {
  const std::u32string text(32768, U'a');
  const CaptionPattern exponential(u"(?:a+)+b");
  EXPECT_EQ(exponential.Occurs(text).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(exponential.ReplaceAll(text, u"").status().code(), absl::StatusCode::kInvalidArgument);
  const CaptionPattern quadratic(u"a+b");
  EXPECT_EQ(quadratic.Occurs(text).status().code(), absl::StatusCode::kInvalidArgument);
  const CaptionPattern linear(u"(?<!a)a+b");
  EXPECT_FALSE(linear.Occurs(text).value());
}

TEST(CaptionPatternDeathTest, RefusesAnInvalidPattern) { EXPECT_DEATH(CaptionPattern(u"(a"), ""); }

}  // namespace
}  // namespace tessera::models::caption
