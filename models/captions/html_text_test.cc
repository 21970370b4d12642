#include "models/captions/html_text.h"

#include <gtest/gtest.h>

#include "models/captions/html_entities.h"
#include "models/captions/python_text.h"

namespace tessera::models::caption {
namespace {

// Expected values are those of BeautifulSoup(text, "html.parser").text of Beautiful Soup 4.15 on Python 3.11.7.
std::string Html(std::string_view text) { return EncodeUtf8(HtmlText(DecodeUtf8(text))); }

TEST(HtmlText, DropsTagsAndComments) {
  EXPECT_EQ(Html("<p class=\"a>b\">x<!-- c --><br/>y</p>"), "xy");
  EXPECT_EQ(Html("<!doctype html><?php x ?>z"), "z");
}

TEST(HtmlText, HidesScriptsAndTheLike) {
  EXPECT_EQ(Html("a<script>b</b></script>c<style>d</style><rt>e</rt><template>f</template>g"), "acg");
}

TEST(HtmlText, ShowsMarkedSections) { EXPECT_EQ(Html("<rt><![CDATA[x]]></rt>y"), "xy"); }

TEST(HtmlText, DecodesReferencesOnce) {
  EXPECT_EQ(Html("&eacute;&#233;&#x2019; &amp;amp; &nosuch;"), "éé’ &amp; &nosuch");
}

TEST(HtmlText, KeepsWhatIsNoMarkup) { EXPECT_EQ(Html("a < b <3 & c"), "a < b <3 & c"); }

TEST(HtmlText, SimplifiesNodesOfWhiteSpaceButNotInPre) {
  EXPECT_EQ(Html("<b>  </b>|<b>\n\n</b>|<pre>  </pre>"), " |\n|  ");
}

TEST(UnescapeHtml, TakesTheLongestNameWithoutASemicolon) {
  EXPECT_EQ(EncodeUtf8(UnescapeHtml(U"&notit; &notin; &copy2 &#128; &#x110000; &#1;")), "¬it; ∉ ©2 € \uFFFD ");
}

TEST(UnescapeHtml, UnambiguousReferencesEndInASemicolonOrAreInCapitals) {
  EXPECT_EQ(EncodeUtf8(UnescapeUnambiguousHtml(U"&ntilde; &NTILDE; &nTILDE; &SZLIG; &not x")),
            "ñ Ñ &nTILDE; SS &not x");
}

}  // namespace
}  // namespace tessera::models::caption
