#include "models/captions/html_text.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <vector>

#include "models/captions/html_entities.h"
#include "models/captions/python_text.h"

namespace tessera::models::caption {
namespace {

constexpr size_t kNone = std::u32string_view::npos;
constexpr size_t kSearchesPerCharacter = 64;

constexpr std::array<std::u32string_view, 24> kEmptyElements = {
    U"area",     U"base", U"basefont", U"bgsound", U"br",     U"col",     U"command", U"embed",
    U"frame",    U"hr",   U"image",    U"img",     U"input",  U"isindex", U"keygen",  U"link",
    U"menuitem", U"meta", U"nextid",   U"param",   U"source", U"spacer",  U"track",   U"wbr"};
constexpr std::array<std::u32string_view, 5> kHiddenElements = {U"rt", U"rp", U"style", U"script", U"template"};
constexpr std::array<std::u32string_view, 2> kPreformattedElements = {U"pre", U"textarea"};
constexpr std::array<std::u32string_view, 2> kRawElements = {U"script", U"style"};

template <size_t n>
bool IsOneOf(std::u32string_view name, const std::array<std::u32string_view, n>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsTagNameEnd(char32_t c) {
  return c == U'\t' || c == U'\n' || c == U'\r' || c == U'\f' || c == U' ' || c == U'/' || c == U'>' || c == U'\0';
}

// The tree builder: tracks the open elements and collects the visible text.
class TextCollector {
 public:
  enum class Kind { kText, kHidden, kAlwaysVisible };

  void Data(std::u32string_view text) {
    pending_ += text;
    has_pending_ = true;
  }

  // Ends the current text node.
  void Flush(Kind kind) {
    if (!has_pending_) return;
    if (preformatted_ == 0 && pending_.find_first_not_of(U" \n\t\f\r") == kNone) {
      pending_ = pending_.find(U'\n') == kNone ? U" " : U"\n";
    }
    if (kind == Kind::kAlwaysVisible || (kind == Kind::kText && hidden_ == 0)) text_ += pending_;
    pending_.clear();
    has_pending_ = false;
  }

  void Start(const std::u32string& name, bool self_closing) {
    Flush(Kind::kText);
    open_.push_back(name);
    ++open_count_[name];
    Count(name, 1);
    if (self_closing) {
      Close(name);
    } else if (IsOneOf(name, kEmptyElements)) {
      Close(name);
      ++already_closed_[name];
    }
  }

  void End(const std::u32string& name) {
    const auto closed = already_closed_.find(name);
    if (closed != already_closed_.end() && closed->second > 0) {
      --closed->second;
    } else {
      Close(name);
    }
  }

  std::u32string Finish() {
    Flush(Kind::kText);
    return std::move(text_);
  }

 private:
  // Closes the innermost element of that name and all elements within it; does nothing if none is open.
  void Close(const std::u32string& name) {
    Flush(Kind::kText);
    const auto count = open_count_.find(name);
    if (count == open_count_.end() || count->second == 0) return;
    for (bool found = false; !found;) {
      const std::u32string last = std::move(open_.back());
      open_.pop_back();
      --open_count_[last];
      Count(last, -1);
      found = last == name;
    }
  }

  void Count(std::u32string_view name, int change) {
    if (IsOneOf(name, kHiddenElements)) hidden_ += change;
    if (IsOneOf(name, kPreformattedElements)) preformatted_ += change;
  }

  std::u32string text_;
  std::u32string pending_;
  bool has_pending_ = false;  // an empty text node counts as one, too
  std::vector<std::u32string> open_;
  std::map<std::u32string, int, std::less<>> open_count_;
  std::map<std::u32string, int, std::less<>> already_closed_;  // empty elements whose end tag may still come
  int hidden_ = 0;
  int preformatted_ = 0;
};

// The tokenizer. A result of kNone for a position means that the markup is unfinished.
class HtmlScanner {
 public:
  explicit HtmlScanner(std::u32string_view html)
      : text_(html),
        last_greater_(html.rfind(U'>')),
        last_less_(html.rfind(U'<')),
        last_single_quote_(html.rfind(U'\'')),
        last_double_quote_(html.rfind(U'"')),
        budget_(kSearchesPerCharacter * (html.size() + kSearchesPerCharacter)) {}

  std::u32string Run() {
    // The second pass takes as text what the first pass leaves unfinished.
    Scan(/*at_end=*/false);
    Scan(/*at_end=*/true);
    return refused_ ? std::u32string(text_) : collector_.Finish();
  }

 private:
  char32_t At(size_t i) const { return i < text_.size() ? text_[i] : U'\0'; }
  bool StartsWith(size_t i, std::u32string_view prefix) const { return text_.substr(i, prefix.size()) == prefix; }
  std::u32string_view Slice(size_t begin, size_t end) const {
    end = std::min(end, text_.size());
    return begin < end ? text_.substr(begin, end - begin) : std::u32string_view();
  }
  // Like find(), but without a search if there is nothing to find.
  size_t FindGreater(size_t i) const {
    return last_greater_ == kNone || i > last_greater_ ? kNone : text_.find(U'>', i);
  }
  size_t FindLess(size_t i) const { return last_less_ == kNone || i > last_less_ ? kNone : text_.find(U'<', i); }
  size_t SkipSpace(size_t i) const {
    while (i < text_.size() && IsSpace(text_[i])) ++i;
    return i;
  }
  void Spend(size_t characters) { budget_ -= std::min(budget_, characters); }

  void Scan(bool at_end) {
    const size_t size = text_.size();
    while (position_ < size && !refused_ && budget_ > 0) {
      const size_t markup = FindMarkup();
      if (markup == kNone && !raw_element_.empty()) break;
      const size_t next = std::min(markup, size);
      if (position_ < next) collector_.Data(Slice(position_, next));
      position_ = next;
      if (position_ == size) break;
      if (!(text_[position_] == U'<' ? ScanTag(at_end) : ScanReference(at_end))) break;
    }
    if (at_end && position_ < size && (raw_element_.empty() || budget_ == 0)) {
      collector_.Data(text_.substr(position_));
      position_ = size;
    }
  }

  size_t FindMarkup() {
    if (raw_element_.empty()) return text_.find_first_of(U"&<", position_);
    for (size_t i = FindLess(position_); i != kNone; i = FindLess(i + 1)) {
      if (At(i + 1) != U'/') continue;
      const size_t name = SkipSpace(i + 2);
      Spend(name - i);
      if (ToLower(text_.substr(name, raw_element_.size())) == raw_element_ &&
          At(SkipSpace(name + raw_element_.size())) == U'>') {
        return i;
      }
    }
    return kNone;
  }

  // Scans at "<". Returns false if the scan must stop here.
  bool ScanTag(bool at_end) {
    const size_t begin = position_;
    size_t end;
    if (IsAsciiLetter(At(begin + 1))) {
      end = StartTag(begin);
    } else if (StartsWith(begin, U"</")) {
      end = EndTag(begin);
    } else if (StartsWith(begin, U"<!--")) {
      end = Comment(begin);
    } else if (StartsWith(begin, U"<?")) {
      const size_t greater = FindGreater(begin + 2);
      end = greater == kNone ? kNone : HiddenMarkup(Slice(begin + 2, greater), greater + 1);
    } else if (StartsWith(begin, U"<!")) {
      end = Declaration(begin);
    } else if (begin + 1 < text_.size()) {
      collector_.Data(U"<");
      end = begin + 1;
    } else {
      return false;
    }
    if (refused_) return false;
    if (end == kNone) {
      if (!at_end) return false;
      end = UnfinishedTagEnd(begin);
      collector_.Data(Slice(begin, end));
    }
    position_ = end;
    return true;
  }

  // Returns the end of markup that the text ends within. It counts as text, up to a ">" or else before the next "<".
  size_t UnfinishedTagEnd(size_t begin) const {
    if (const size_t greater = FindGreater(begin + 1); greater != kNone) return greater + 1;
    const size_t less = FindLess(begin + 1);
    return less != kNone ? less : begin + 1;
  }

  size_t HiddenMarkup(std::u32string_view content, size_t end) {
    collector_.Flush(TextCollector::Kind::kText);
    collector_.Data(content);
    collector_.Flush(TextCollector::Kind::kHidden);
    return end;
  }

  size_t Comment(size_t begin) {
    for (size_t i = begin + 4; i + 2 < text_.size(); ++i) {
      Spend(1);
      if (text_[i] != U'-' || text_[i + 1] != U'-') continue;
      const size_t greater = SkipSpace(i + 2);
      Spend(greater - i);
      if (At(greater) == U'>') return HiddenMarkup(Slice(begin + 4, i), greater + 1);
    }
    return kNone;
  }

  size_t Declaration(size_t begin) {
    if (StartsWith(begin, U"<![")) return MarkedSection(begin);
    const bool doctype = ToLower(text_.substr(begin, 9)) == U"<!doctype";
    const size_t greater = FindGreater(begin + (doctype ? 9 : 2));
    return greater == kNone ? kNone : HiddenMarkup(Slice(begin + 2, greater), greater + 1);
  }

  // <![cdata[ ... ]]> or <![if ...]>
  size_t MarkedSection(size_t begin) {
    const size_t content = begin + 3;
    if (content >= text_.size()) return kNone;
    size_t end = content;
    if (IsAsciiLetter(At(end))) {
      while (end < text_.size() && (IsAsciiLetter(text_[end]) || IsAsciiDigit(text_[end]) || text_[end] == U'-' ||
                                    text_[end] == U'_' || text_[end] == U'.')) {
        ++end;
      }
    }
    const std::u32string keyword = ToLower(Slice(content, end));
    if (!keyword.empty() && SkipSpace(end) == text_.size()) return kNone;
    const bool sgml = keyword == U"temp" || keyword == U"cdata" || keyword == U"ignore" || keyword == U"include" ||
                      keyword == U"rcdata";
    if (!sgml && keyword != U"if" && keyword != U"else" && keyword != U"endif") {
      refused_ = true;
      return kNone;
    }
    for (size_t i = text_.find(U']', content); i != kNone; i = text_.find(U']', i + 1)) {
      size_t close = SkipSpace(i + 1);
      Spend(close - i);
      if (sgml) close = At(close) == U']' ? SkipSpace(close + 1) : text_.size();
      if (At(close) != U'>') continue;
      Spend(i - content);
      const std::u32string_view section = Slice(content, i);
      if (ToUpper(section.substr(0, 6)) != U"CDATA[") return HiddenMarkup(section, close + 1);
      collector_.Flush(TextCollector::Kind::kText);
      collector_.Data(section.substr(6));
      collector_.Flush(TextCollector::Kind::kAlwaysVisible);
      return close + 1;
    }
    Spend(text_.size() - content);
    return kNone;
  }

  size_t EndTag(size_t begin) {
    const size_t greater = FindGreater(begin + 1);
    if (greater == kNone) return kNone;
    // </ name >, with nothing else in it
    size_t name = SkipSpace(begin + 2);
    size_t name_end = name;
    if (IsAsciiLetter(At(name))) {
      while (IsAsciiLetter(At(name_end)) || IsAsciiDigit(At(name_end)) || At(name_end) == U'-' ||
             At(name_end) == U'.' || At(name_end) == U':' || At(name_end) == U'_') {
        ++name_end;
      }
    }
    if (name_end > name && SkipSpace(name_end) == greater) {
      const std::u32string element = ToLower(Slice(name, name_end));
      if (!raw_element_.empty() && element != raw_element_) {
        collector_.Data(Slice(begin, greater + 1));
        return greater + 1;
      }
      collector_.End(element);
      raw_element_.clear();
      return greater + 1;
    }
    if (!raw_element_.empty()) {
      collector_.Data(Slice(begin, greater + 1));
      return greater + 1;
    }
    name = begin + 2;
    if (!IsAsciiLetter(At(name))) {
      if (At(name) == U'>') return begin + 3;
      return HiddenMarkup(Slice(begin + 2, greater), greater + 1);
    }
    name_end = name;
    while (name_end < text_.size() && !IsTagNameEnd(text_[name_end])) ++name_end;
    collector_.End(ToLower(Slice(name, name_end)));
    return greater + 1;
  }

  // Skips white space and slashes that are not part of a "/>".
  size_t SkipSpaceAndSlashes(size_t i) const {
    while (i < text_.size() && (IsSpace(text_[i]) || (text_[i] == U'/' && At(i + 1) != U'>'))) ++i;
    return i;
  }

  // Returns the end of an attribute's name that begins at i, or i if there is none.
  size_t AttributeName(size_t i) const {
    const char32_t before = At(i - 1);
    if (before != U'\'' && before != U'"' && before != U'/' && !IsSpace(before)) return i;
    if (i >= text_.size() || IsSpace(text_[i]) || text_[i] == U'/' || text_[i] == U'>') return i;
    ++i;
    while (i < text_.size() && !IsSpace(text_[i]) && text_[i] != U'/' && text_[i] != U'=' && text_[i] != U'>') ++i;
    return i;
  }

  size_t ValueAt(size_t i) const {
    const char32_t quote = At(i);
    if (quote == U'\'' || quote == U'"') {
      const size_t last = quote == U'"' ? last_double_quote_ : last_single_quote_;
      return last == i ? kNone : text_.find(quote, i + 1) + 1;
    }
    while (i < text_.size() && text_[i] != U'>' && !IsSpace(text_[i])) ++i;
    return i;
  }

  // Returns the end of an attribute's "= value" that begins at i, or i if there is none. A quote that is never closed
  // is not a value; then the white space or the "=" before it counts as one.
  size_t AttributeValue(size_t i) const {
    const size_t equals = SkipSpace(i);
    if (At(equals) != U'=') return i;
    size_t after_equals = equals;
    while (At(after_equals) == U'=') ++after_equals;
    const size_t value = SkipSpace(after_equals);
    if (const size_t end = ValueAt(value); end != kNone) return end;
    if (value > after_equals) return value - 1;
    if (after_equals > equals + 1) return ValueAt(after_equals - 1);
    return i;
  }

  // Returns the position where the start tag ends, directly after its ">" if it has one.
  size_t StartTagEnd(size_t begin) {
    size_t i = begin + 1;
    while (i < text_.size() && !IsTagNameEnd(text_[i])) ++i;
    while (i < text_.size() && (IsSpace(text_[i]) || text_[i] == U'/')) ++i;
    while (true) {
      const size_t name_end = AttributeName(i);
      if (name_end == i) break;
      const size_t value_end = AttributeValue(name_end);
      i = SkipSpaceAndSlashes(value_end > name_end ? SkipSpace(value_end) : name_end);
    }
    i = SkipSpace(i);
    Spend(i - begin);
    if (At(i) == U'>') return i + 1;
    if (StartsWith(i, U"/>")) return i + 2;
    if (i >= text_.size() || At(i) == U'/' || At(i) == U'=' || IsAsciiLetter(At(i))) return kNone;
    return i;
  }

  size_t StartTag(size_t begin) {
    const size_t end = StartTagEnd(begin);
    if (end == kNone) return kNone;
    size_t i = begin + 1;
    while (i < text_.size() && !IsTagNameEnd(text_[i])) ++i;
    const std::u32string name = ToLower(Slice(begin + 1, i));
    i = SkipSpaceAndSlashes(i);
    while (i < end) {
      const size_t name_end = AttributeName(i);
      if (name_end == i) break;
      i = SkipSpaceAndSlashes(AttributeValue(name_end));
    }
    const std::u32string_view closing = Strip(Slice(i, end));
    if (closing != U">" && closing != U"/>") {
      collector_.Data(Slice(begin, end));
      return end;
    }
    const bool self_closing = closing == U"/>";
    collector_.Start(name, self_closing);
    if (!self_closing && IsOneOf(name, kRawElements)) raw_element_ = name;
    return end;
  }

  // Scans at "&". Returns false if the scan must stop here.
  bool ScanReference(bool at_end) {
    const size_t begin = position_;
    if (At(begin + 1) == U'#') return ScanNumericReference();
    if (IsAsciiLetter(At(begin + 1))) {
      size_t end = begin + 2;
      while (IsAsciiLetter(At(end)) || IsAsciiDigit(At(end)) || At(end) == U'-' || At(end) == U'.') ++end;
      if (end >= text_.size()) {
        // The name must be followed by something, for which a "-" or "." that ends the name itself suffices.
        end = text_.find_last_of(U"-.");
        if (end == kNone || end < begin + 2) {
          if (at_end && begin + 2 == text_.size()) ++position_;
          return false;
        }
      }
      const std::u32string_view name = Slice(begin + 1, end);
      if (const auto entity = NamedEntity(name)) {
        collector_.Data(*entity);
      } else {
        collector_.Data(U"&" + std::u32string(name));
      }
      position_ = end + (At(end) == U';' ? 1 : 0);
      return true;
    }
    if (begin + 1 >= text_.size()) return false;
    collector_.Data(U"&");
    ++position_;
    return true;
  }

  // Scans at "&#". A malformed reference ends the scan: the rest is plain text.
  bool ScanNumericReference() {
    const bool hex = At(position_ + 2) == U'x' || At(position_ + 2) == U'X';
    const size_t digits = position_ + (hex ? 3 : 2);
    size_t end = digits;
    while (hex ? IsAsciiHexDigit(At(end)) : IsAsciiDigit(At(end))) ++end;
    if (end == digits || end >= text_.size() || IsAsciiHexDigit(At(end))) {
      if (text_.find(U';', position_) != kNone) {
        collector_.Data(U"&#");
        position_ += 2;
      }
      return false;
    }
    const char32_t number = ParseCharacterNumber(Slice(digits, end), hex ? 16 : 10);
    const bool is_character = number != 0 && number < 0x110000 && (number < 0xD800 || number > 0xDFFF);
    const char32_t character = is_character ? Windows1252ToUnicode(number) : U'\uFFFD';
    collector_.Data(std::u32string_view(&character, 1));
    position_ = end + (At(end) == U';' ? 1 : 0);
    return true;
  }

  std::u32string_view text_;
  size_t last_greater_, last_less_, last_single_quote_, last_double_quote_;
  size_t budget_;  // number of characters that may still be scanned ahead of the position
  size_t position_ = 0;
  std::u32string raw_element_;  // script or style, while inside one
  bool refused_ = false;
  TextCollector collector_;
};

}  // namespace

std::u32string HtmlText(std::u32string_view html) { return HtmlScanner(html).Run(); }

}  // namespace tessera::models::caption
