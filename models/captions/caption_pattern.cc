#include "models/captions/caption_pattern.h"

#include <unicode/unistr.h>

#include <cstdint>
#include <cstdlib>

#include "absl/status/status.h"
#include "models/captions/python_text.h"

namespace tessera::models::caption {
namespace {

// ICU's unit of time is ten thousand steps.
constexpr int32_t kUnitsOfSteps = 100;
constexpr int32_t kCharactersToAUnitOfSteps = 20;

// Members of sets that are the same as IsWord and IsSpace.
#define TESSERA_WORD u"\\p{L}\\p{N}\\P{nt=None}_"
#define TESSERA_SPACE u"\\t-\\r\\x1C-\\x20\\x85\\xA0\\u1680\\u2000-\\u200A\\u2028\\u2029\\u202F\\u205F\\u3000"

// Returns an empty text for an escape that has the same meaning in Python and ICU.
std::u16string_view ClassOfPython(char16_t escaped) {
  switch (escaped) {
    case u'b':
      return u"(?:(?<=[" TESSERA_WORD u"])(?![" TESSERA_WORD u"])|(?<![" TESSERA_WORD u"])(?=[" TESSERA_WORD u"]))";
    case u'd':
      return u"\\p{Nd}";
    case u's':
      return u"[" TESSERA_SPACE u"]";
    case u'S':
      return u"[^" TESSERA_SPACE u"]";
    case u'w':
      return u"[" TESSERA_WORD u"]";
    default:
      return {};
  }
}

#undef TESSERA_SPACE
#undef TESSERA_WORD

icu::UnicodeString WithClassesOfPython(std::u16string_view pattern) {
  std::u16string result;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != u'\\' || i + 1 == pattern.size()) {
      result += pattern[i];
      continue;
    }
    const std::u16string_view escape = pattern.substr(i, 2);
    const std::u16string_view of_python = ClassOfPython(escape[1]);
    result += of_python.empty() ? escape : of_python;
    ++i;
  }
  return icu::UnicodeString(result.data(), static_cast<int32_t>(result.size()));
}

// A text with a search that takes a bounded number of steps.
struct BoundedSearch {
  BoundedSearch(const icu::RegexPattern& pattern, std::u32string_view searched)
      : text(ToIcu(searched)), matcher(pattern.matcher(text, error)) {
    if (U_SUCCESS(error)) matcher->setTimeLimit(kUnitsOfSteps + text.length() / kCharactersToAUnitOfSteps, error);
  }
  absl::Status status() const {
    if (U_SUCCESS(error)) return absl::OkStatus();
    return absl::InvalidArgumentError("cleaning the caption takes too many steps");
  }

  const icu::UnicodeString text;
  UErrorCode error = U_ZERO_ERROR;
  const std::unique_ptr<icu::RegexMatcher> matcher;
};

}  // namespace

CaptionPattern::CaptionPattern(std::u16string_view pattern) {
  UErrorCode error = U_ZERO_ERROR;
  pattern_.reset(icu::RegexPattern::compile(WithClassesOfPython(pattern), UREGEX_UNIX_LINES, error));
  if (U_FAILURE(error)) std::abort();
}

absl::StatusOr<bool> CaptionPattern::Occurs(std::u32string_view text) const {
  BoundedSearch search(*pattern_, text);
  const bool found = U_SUCCESS(search.error) && search.matcher->find(search.error);
  if (absl::Status status = search.status(); !status.ok()) return status;
  return found;
}

absl::StatusOr<std::u32string> CaptionPattern::ReplaceAll(std::u32string_view text,
                                                          std::u16string_view replacement) const {
  BoundedSearch search(*pattern_, text);
  icu::UnicodeString result;
  const icu::UnicodeString by(replacement.data(), static_cast<int32_t>(replacement.size()));
  // RegexMatcher::replaceAll would stop at the bound without an error.
  while (U_SUCCESS(search.error) && search.matcher->find(search.error)) {
    search.matcher->appendReplacement(result, by, search.error);
  }
  if (absl::Status status = search.status(); !status.ok()) return status;
  search.matcher->appendTail(result);
  return FromIcu(result);
}

}  // namespace tessera::models::caption
