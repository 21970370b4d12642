// CaptionPattern is a regular expression with the meaning that Python's re gives it. ICU runs it with a bounded number
// of steps.
//
// ICU and Python differ in \b, \d, \s, \S and \w, which are replaced by Python's classes; every other part of a pattern
// is in ICU's syntax. A pattern is part of the program, so an invalid one aborts in the constructor. Immutable and
// thread-safe afterwards.
#pragma once

#include <unicode/regex.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::models::caption {

class CaptionPattern {
 public:
  explicit CaptionPattern(std::u16string_view pattern);

  // Return InvalidArgument if the search takes more steps than a bound that is linear in the text.
  absl::StatusOr<bool> Occurs(std::u32string_view text) const;
  // Replaces all matches from left to right. In `replacement`, $1 is the text of the first group, or an empty text if
  // the group is not part of the match.
  absl::StatusOr<std::u32string> ReplaceAll(std::u32string_view text, std::u16string_view replacement) const;

 private:
  std::shared_ptr<const icu::RegexPattern> pattern_;
};

}  // namespace tessera::models::caption
