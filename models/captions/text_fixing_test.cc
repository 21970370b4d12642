#include "models/captions/text_fixing.h"

#include <gtest/gtest.h>

#include "models/captions/python_text.h"

namespace tessera::models::caption {
namespace {

// Expected values are those of ftfy.fix_text(text) of ftfy 6.3.1.
std::string Fix(std::string_view text) { return EncodeUtf8(FixText(DecodeUtf8(text))); }

TEST(FixText, RepairsMisreadUtf8) {
  EXPECT_EQ(Fix("schÃ¶n Ãœbung donâ€™t"), "schön Übung don't");
  EXPECT_EQ(Fix("âœ” No problems"), "✔ No problems");
  EXPECT_EQ(Fix("voilÃ  le travail"), "voilà le travail");
  EXPECT_EQ(Fix("РїСЂРёРІРµС‚"), "привет");
}

TEST(FixText, RepairsTextThatWasMisreadTwice) { EXPECT_EQ(Fix("ÃƒÂ©tÃƒÂ©"), "été"); }

TEST(FixText, RepairsPartsOfATextThatIsOtherwiseFine) { EXPECT_EQ(Fix("漢字 schÃ¶n â€œxâ€"), "漢字 schön \"xâ€"); }

TEST(FixText, LeavesAccentsAlone) { EXPECT_EQ(Fix("à la carte, Ångström, ÉTÉ"), "à la carte, Ångström, ÉTÉ"); }

TEST(FixText, MakesWidthsQuotesAndLigaturesPlain) { EXPECT_EQ(Fix("ＬＯＵＤ　ｶﾞ “ﬁx” ‘ŉ’"), "LOUD ガ \"fix\" ''n'"); }

TEST(FixText, DecodesReferencesOnlyWithoutTags) {
  EXPECT_EQ(Fix("&lt;b&gt; &hellip;"), "<b> …");
  EXPECT_EQ(Fix("<b> &hellip;"), "<b> &hellip;");
}

TEST(FixText, RemovesControlsAndTerminalEscapes) { EXPECT_EQ(Fix("a\x1b[31;1mb\x07\ufeff\r\nc\u2028d"), "ab\nc\nd"); }

}  // namespace
}  // namespace tessera::models::caption
