#include "models/tokenizers/text_pattern.h"

#include <unicode/utf16.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "models/tokenizers/pattern_syntax.h"

namespace tessera::models {
namespace {

// ICU's unit of time is ten thousand steps.
constexpr int32_t kUnitsOfTime = 500;
constexpr size_t kCharactersToAUnit = 100;

}  // namespace

absl::StatusOr<TextPattern> TextPattern::Read(const base::Json* json) {
  const base::Json* const text = json == nullptr ? nullptr : json->Find("String");
  const base::Json* const regex = json == nullptr ? nullptr : json->Find("Regex");
  if (json != nullptr && json->members().size() == 1) {
    if (text != nullptr && text->AsString() != nullptr) return Literal(*text->AsString());
    if (regex != nullptr && regex->AsString() != nullptr) return Regex(*regex->AsString());
  }
  return absl::InvalidArgumentError(absl::StrCat("the pattern is ", json == nullptr ? "missing" : json->Describe(),
                                                 "; it is {\"String\": TEXT} or {\"Regex\": EXPRESSION}"));
}

absl::StatusOr<TextPattern> TextPattern::Literal(std::string_view utf8) {
  if (utf8.empty()) return absl::InvalidArgumentError("the pattern is an empty text");
  TextPattern pattern;
  for (const TracedChar& c : TraceText(utf8, 0)) pattern.literal_.push_back(c.code);
  return pattern;
}

absl::StatusOr<TextPattern> TextPattern::Regex(std::string_view expression) {
  ASSIGN_OR_RETURN(const std::string translated, TranslateExpression(expression));
  const std::u16string units(translated.begin(), translated.end());  // ASCII
  UErrorCode error = U_ZERO_ERROR;
  std::shared_ptr<URegularExpression> compiled(
      uregex_open(units.data(), static_cast<int32_t>(units.size()), 0, nullptr, &error),
      [](URegularExpression* e) { uregex_close(e); });
  if (U_FAILURE(error)) {
    return absl::InvalidArgumentError(absl::StrCat("the expression ", base::Quote(expression), " cannot be compiled"));
  }
  TextPattern pattern;
  pattern.expression_ = std::move(compiled);
  return pattern;
}

TextPattern::Finder::Finder(const TextPattern& pattern) : pattern_(pattern), expression_(nullptr, &uregex_close) {
  if (pattern.expression_ == nullptr) return;
  UErrorCode error = U_ZERO_ERROR;
  expression_.reset(uregex_clone(pattern.expression_.get(), &error));
}

void TextPattern::Finder::FindLiteral(std::span<const TracedChar> text, std::vector<Match>& matches) const {
  const std::u32string& wanted = pattern_.literal_;
  const auto same = [](const TracedChar& c, char32_t code) { return c.code == code; };
  for (auto begin = text.begin();;) {
    begin = std::search(begin, text.end(), wanted.begin(), wanted.end(), same);
    if (begin == text.end()) return;
    const auto at = static_cast<size_t>(begin - text.begin());
    matches.push_back({at, at + wanted.size()});
    begin += static_cast<std::ptrdiff_t>(wanted.size());
  }
}

absl::Status TextPattern::Finder::Find(std::span<const TracedChar> text, std::vector<Match>& matches) {
  matches.clear();
  if (pattern_.expression_ == nullptr) {
    FindLiteral(text, matches);
    return absl::OkStatus();
  }
  units_.clear();
  characters_.clear();
  for (size_t i = 0; i < text.size(); ++i) {
    const auto code = static_cast<UChar32>(text[i].code);
    const auto lead = static_cast<char16_t>(U16_LENGTH(code) == 1 ? code : U16_LEAD(code));
    units_.push_back(lead);
    characters_.push_back(i);
    if (U16_LENGTH(code) == 1) continue;
    units_.push_back(static_cast<char16_t>(U16_TRAIL(code)));
    characters_.push_back(i);
  }
  characters_.push_back(text.size());
  if (units_.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError("the text is too long for a regular expression");
  }
  UErrorCode error = U_ZERO_ERROR;
  URegularExpression* const expression = expression_.get();
  uregex_setText(expression, units_.data(), static_cast<int32_t>(units_.size()), &error);
  uregex_setTimeLimit(expression, kUnitsOfTime + static_cast<int32_t>(text.size() / kCharactersToAUnit), &error);
  while (U_SUCCESS(error) && uregex_findNext(expression, &error)) {
    const size_t begin = characters_[uregex_start(expression, 0, &error)];
    const size_t end = characters_[uregex_end(expression, 0, &error)];
    if (begin < end) matches.push_back({begin, end});
  }
  if (U_SUCCESS(error)) return absl::OkStatus();
  return absl::InvalidArgumentError("the tokenizer's regular expression takes too many steps on this text");
}

}  // namespace tessera::models
