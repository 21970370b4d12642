#include "base/text/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::base {
namespace {

TEST(Utf8Test, AcceptsTheFirstAndLastCharacterOfEveryLength) {
  for (const char* text : {"\x01", "\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(FirstInvalidUtf8(text), absl::string_view(text).size()) << text;
  }
}

TEST(Utf8Test, RefusesOverlongFormsSurrogatesAndWhatLiesBeyondUnicode) {
  for (const char* text : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                           "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(FirstInvalidUtf8(text), 0u) << text;
  }
}

TEST(Utf8Test, NamesTheOffsetOfACharacterThatIsCutShort) {
  EXPECT_EQ(FirstInvalidUtf8("caf\xC3"), 3u);
  EXPECT_EQ(FirstInvalidUtf8("\xF0\x9F\x8D"), 0u);
}

TEST(Utf8Test, FindsAWrongByteAnywhereInAscii) {
  for (size_t at = 0; at < 24; ++at) {
    std::string text(24, 'a');
    text[at] = '\xFF';
    EXPECT_EQ(FirstInvalidUtf8(text), at);
  }
}

TEST(Utf8Test, ReplacesOnlyTheBytesThatAreWrong) {
  EXPECT_EQ(ReplaceInvalidUtf8("a\xFF\xC3\xA9\xE2\x82z"), "a?\xC3\xA9??z");
}

TEST(Utf8Test, ReplacesControlCharactersAndNothingElse) {
  EXPECT_EQ(ReplaceControlCharacters("a\nb\tc\x1b[2J\x7f"), "a?b?c?[2J?");
  EXPECT_EQ(ReplaceControlCharacters(std::string("\0 ~ café", 9)), "? ~ café");
}

}  // namespace
}  // namespace tessera::base
