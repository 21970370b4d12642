// The visible text of a piece of HTML, as BeautifulSoup(text, "html.parser").text gives it.
// Pure and thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace tessera::models::caption {

// Tags, comments, declarations and the contents of script, style, template, rt and rp are dropped; character references
// are decoded once; a text node of white space alone becomes one space or line feed, except in pre and textarea.
// Follows html.parser of Python 3.11.7 to the letter, its odd handling of unfinished tags and references included.
// Differences: where the parser refuses the text (<![x]>) the text is returned unchanged, and a text in which
// unfinished markup would have to be searched through again and again (more than 64 times its length) is not searched
// further: the rest of it counts as text.
std::u32string HtmlText(std::u32string_view html);

}  // namespace tessera::models::caption
