// Extracts the visible text of a piece of HTML, like BeautifulSoup(text, "html.parser").text. Pure and thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace tessera::models::caption {

// Drops tags, comments, declarations and the contents of script, style, template, rt and rp; decodes character
// references once; replaces a text node that is only white space by one space or line feed, except in pre and textarea.
// Follows html.parser of Python 3.11.7 exactly, including its odd handling of unfinished tags and references.
// Differences: if that parser rejects the text (<![x]>), the text is returned unchanged; and if unfinished markup would
// have to be searched repeatedly (for more than 64 times the text's length), the search ends and the rest counts as
// text.
std::u32string HtmlText(std::u32string_view html);

}  // namespace tessera::models::caption
