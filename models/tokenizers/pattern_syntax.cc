#include "models/tokenizers/pattern_syntax.h"

#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/json/json.h"
#include "models/tokenizers/newer_characters.h"

namespace tessera::models {
namespace {

constexpr size_t kMaxExpressionBytes = 10000;
constexpr int kMaxDepth = 32;
constexpr int kMaxRepeats = 1000;

// Properties that have the same name and meaning in both engines.
constexpr std::array<std::string_view, 57> kProperties = {
    "Alphabetic", "Arabic",     "Armenian", "Bengali",  "C",     "Cc",        "Cf",      "Cn",     "Co",     "Common",
    "Cyrillic",   "Devanagari", "Ethiopic", "Georgian", "Greek", "Gujarati",  "Han",     "Hangul", "Hebrew", "Hiragana",
    "Inherited",  "Katakana",   "Khmer",    "L",        "Lao",   "Latin",     "Ll",      "Lm",     "Lo",     "Lt",
    "Lu",         "M",          "Mc",       "Me",       "Mn",    "Mongolian", "Myanmar", "N",      "Nd",     "Nl",
    "No",         "P",          "Pc",       "Pd",       "Pe",    "Pf",        "Pi",      "Po",     "Ps",     "S",
    "Sc",         "Sk",         "Sm",       "So",       "Tamil", "Thai",      "Z"};
constexpr std::array<std::string_view, 4> kSeparators = {"Zl", "Zp", "Zs", "White_Space"};

std::string Number(char32_t code) { return absl::StrCat("\\x{", absl::Hex(static_cast<uint32_t>(code)), "}"); }

// Returns a class of `inside`, the contents of brackets, and of the newer characters of some categories.
std::string WithNewer(bool negated, const std::string& inside, std::string_view categories) {
  std::string set = absl::StrCat(negated ? "[^" : "[", inside);
  for (const char category : categories) {
    for (const CharacterRange& range : NewerCharacters(category)) {
      absl::StrAppend(&set, Number(range.first), "-", Number(range.last));
    }
  }
  return set + "]";
}

// Returns the expansion of \s, \d and \w, in and out of a class; nothing for any other letter.
std::optional<std::string> ShortClass(char letter) {
  const bool negated = absl::ascii_isupper(static_cast<unsigned char>(letter));
  switch (absl::ascii_tolower(static_cast<unsigned char>(letter))) {
    case 's':
      return WithNewer(negated, "\\p{White_Space}", "");
    case 'd':
      return WithNewer(negated, "\\p{Nd}", "N");  // all newer numbers are digits
    case 'w':
      return WithNewer(negated, "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}", "LMN");
    default:
      return std::nullopt;
  }
}

std::optional<char32_t> NamedCharacter(char letter) {
  constexpr std::string_view kLetters = "tnrfvae";
  constexpr std::string_view kValues = "\t\n\r\f\v\a\x1B";
  const size_t found = kLetters.find(letter);
  return found == kLetters.npos ? std::nullopt : std::make_optional<char32_t>(kValues[found]);
}

class Translator {
 public:
  explicit Translator(std::string_view text) : text_(text) {}

  absl::StatusOr<std::string> Run() {
    Alternatives(0);
    if (error_.ok() && position_ < text_.size()) Refuse("an unmatched \")\"");
    if (!error_.ok()) return error_;
    return std::move(result_);
  }

 private:
  bool More() const { return error_.ok() && position_ < text_.size(); }
  bool Take(std::string_view token) {
    if (!text_.substr(position_).starts_with(token)) return false;
    position_ += token.size();
    return true;
  }
  void Refuse(const std::string& what) {
    if (!error_.ok()) return;
    error_ = absl::InvalidArgumentError(absl::StrCat("the expression ", base::Quote(text_), " has ", what, " at byte ",
                                                     position_, ", which is not supported"));
  }
  char32_t Character() {
    UChar32 c;
    auto i = static_cast<int64_t>(position_);
    U8_NEXT(reinterpret_cast<const uint8_t*>(text_.data()), i, static_cast<int64_t>(text_.size()), c);
    if (c < 0) {
      Refuse("bytes that are not UTF-8");
      return 0;
    }
    position_ = static_cast<size_t>(i);
    return static_cast<char32_t>(c);
  }

  void Alternatives(int depth) {
    if (depth > kMaxDepth) return Refuse("groups that are nested too deeply");
    while (More() && text_[position_] != ')') {
      if (Take("|")) {
        result_ += '|';
        continue;
      }
      Atom(depth);
      Quantifier();
    }
  }

  void Atom(int depth) {
    if (Take("(")) return Group(depth);
    if (Take("[")) return Class(depth);
    if (Take(".")) {
      result_ += "[^\\x{a}]";
      return;
    }
    if (text_[position_] == '\\') {
      if (const std::optional<char32_t> code = Escape()) result_ += Number(*code);
      return;
    }
    if (std::string_view("*+?").find(text_[position_]) != std::string_view::npos) return Refuse("a bare quantifier");
    if (std::string_view("^$").find(text_[position_]) != std::string_view::npos) {
      return Refuse(absl::StrCat("the anchor ", base::Quote(text_.substr(position_, 1))));
    }
    result_ += Number(Character());
  }

  void Group(int depth) {
    for (const std::string kind : {"?:", "?i:", "?=", "?!", "?>"}) {
      if (!Take(kind)) continue;
      absl::StrAppend(&result_, "(", kind);
      return GroupBody(depth);
    }
    if (Take("?"))
      return Refuse(absl::StrCat("the group ", base::Quote("(?" + std::string(text_.substr(position_, 3)))));
    result_ += "(?:";
    GroupBody(depth);
  }

  void GroupBody(int depth) {
    Alternatives(depth + 1);
    if (error_.ok() && !Take(")")) Refuse("a group without its end");
    result_ += ')';
  }

  // Returns a single character, or nothing if it wrote a class of characters or refused the escape.
  std::optional<char32_t> Escape() {
    const size_t begin = position_++;
    if (position_ == text_.size()) {
      Refuse("a backslash at its end");
      return std::nullopt;
    }
    const char letter = text_[position_];
    if (const auto set = ShortClass(letter)) {
      ++position_;
      result_ += *set;
      return std::nullopt;
    }
    if (const auto code = NamedCharacter(letter)) {
      ++position_;
      return code;
    }
    if (letter == 'p' || letter == 'P') {
      Property();
      return std::nullopt;
    }
    if (letter == 'x' || letter == 'u') return Hexadecimal();
    if (absl::ascii_isalnum(static_cast<unsigned char>(letter))) {
      position_ = begin;
      Refuse(absl::StrCat("the escape ", base::Quote(text_.substr(begin, 2))));
      return std::nullopt;
    }
    return Character();
  }

  void Property() {
    const bool capital = text_[position_++] == 'P';
    const size_t end = text_.find('}', position_);
    if (!Take("{") || end == text_.npos) return Refuse("a property without braces");
    const bool negated = Take("^") != capital;
    const std::string name(text_.substr(position_, end - position_));
    const auto is_name = [&name](std::string_view known) { return known == name; };
    if (std::none_of(kProperties.begin(), kProperties.end(), is_name) &&
        std::none_of(kSeparators.begin(), kSeparators.end(), is_name)) {
      return Refuse(absl::StrCat("the property ", base::Quote(name)));
    }
    position_ = end + 1;
    absl::StrAppend(&result_, WithNewer(negated, absl::StrCat("\\p{", name, "}"), name.size() == 1 ? name : ""));
  }

  // Parses \xHH, \x{H…} and \uHHHH.
  std::optional<char32_t> Hexadecimal() {
    const bool unicode = text_[position_++] == 'u';
    const bool braced = !unicode && Take("{");
    const size_t most = unicode ? 4 : braced ? 8 : 2;
    size_t digits = 0;
    while (digits < most && position_ + digits < text_.size() &&
           absl::ascii_isxdigit(static_cast<unsigned char>(text_[position_ + digits]))) {
      ++digits;
    }
    uint32_t code = 0;
    const bool complete = digits > 0 && (!unicode || digits == 4) &&
                          absl::SimpleHexAtoi(std::string(text_.substr(position_, digits)), &code);
    position_ += digits;
    // \x80 to \xFF without braces is a byte, not a character.
    if (!complete || (braced && !Take("}")) || !U_IS_UNICODE_CHAR(code) || (!unicode && !braced && code >= 0x80)) {
      Refuse("a malformed number of a character");
      return std::nullopt;
    }
    return static_cast<char32_t>(code);
  }

  void Class(int depth) {
    if (depth > kMaxDepth) return Refuse("classes that are nested too deeply");
    result_ += Take("^") ? "[^" : "[";
    if (text_.substr(position_).starts_with(']')) return Refuse("an empty class");
    while (More() && text_[position_] != ']') {
      if (text_.substr(position_).starts_with("[:") || text_.substr(position_).starts_with("&&")) {
        return Refuse(absl::StrCat("the class ", base::Quote(text_.substr(position_, 2))));
      }
      if (Take("[")) {
        Class(depth + 1);
        continue;
      }
      const std::optional<char32_t> first = ClassCharacter();
      if (!first || !error_.ok()) continue;
      result_ += Number(*first);
      const bool range = position_ + 1 < text_.size() && text_[position_] == '-' && text_[position_ + 1] != ']';
      if (!range) continue;
      ++position_;
      const size_t before = result_.size();
      const std::optional<char32_t> last = text_[position_] == '[' ? std::nullopt : ClassCharacter();
      if (!error_.ok()) return;
      if (!last || result_.size() != before || *last < *first) return Refuse("a range without an end");
      absl::StrAppend(&result_, "-", Number(*last));
    }
    if (error_.ok() && !Take("]")) Refuse("a class without its end");
    result_ += ']';
  }

  std::optional<char32_t> ClassCharacter() {
    if (text_[position_] == '\\') return Escape();
    return Character();
  }

  void Quantifier() {
    if (!More()) return;
    const char kind = text_[position_];
    if (kind == '*' || kind == '+' || kind == '?') {
      ++position_;
      result_ += kind;
      if (Take("?")) {
        result_ += '?';
      } else if (Take("+")) {
        result_ += '+';
      }
    } else if (kind == '{') {
      if (!Counts()) return;  // a literal brace
    } else {
      return;
    }
    if (More() && std::string_view("*+?").find(text_[position_]) != std::string_view::npos) {
      Refuse("a quantifier of a quantifier");
    }
  }

  // Parses {n}, {n,}, {n,m} and {,m}, each optionally followed by "?".
  bool Counts() {
    const size_t end = text_.find('}', position_);
    const std::string_view inside =
        end == text_.npos ? std::string_view() : text_.substr(position_ + 1, end - position_ - 1);
    const size_t comma = std::min(inside.find(','), inside.size());
    const std::string low(inside.substr(0, comma));
    const std::string high(inside.substr(std::min(comma + 1, inside.size())));
    const auto is_number = [](const std::string& digits) {
      return std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
    };
    if ((low.empty() && high.empty()) || !is_number(low) || !is_number(high)) return false;
    int least = 0, most = 0;
    if ((!low.empty() && !absl::SimpleAtoi(low, &least)) || (!high.empty() && !absl::SimpleAtoi(high, &most)) ||
        std::max(least, most) > kMaxRepeats || (!high.empty() && most < least)) {
      Refuse("a count beyond its bounds");
      return true;
    }
    const bool exact = comma == inside.size();
    position_ = end + 1;
    absl::StrAppend(&result_, "{", least, exact ? "" : ",", high, "}");
    if (!exact && Take("?")) result_ += '?';
    return true;
  }

  std::string_view text_;
  size_t position_ = 0;
  std::string result_;
  absl::Status error_;
};

}  // namespace

absl::StatusOr<std::string> TranslateExpression(std::string_view expression) {
  if (expression.size() > kMaxExpressionBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the expression ", base::Quote(expression), " has ",
                                                   expression.size(), " bytes; valid values are at most ",
                                                   kMaxExpressionBytes));
  }
  return Translator(expression).Run();
}

}  // namespace tessera::models
