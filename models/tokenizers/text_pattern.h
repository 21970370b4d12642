// TextPattern is a pattern of a tokenizer.json: a literal text, or a regular expression in Oniguruma's syntax.
//
// ICU runs the expressions. The two engines differ in the meaning of some escapes, anchors and braces, so an expression
// is parsed here and rewritten with every literal as a number; an unsupported construct is refused by name. For
// supported expressions both engines find the same matches, as far as their versions of Unicode agree. Immutable and
// thread-safe; a Finder belongs to one thread.
#pragma once

#include <unicode/uregex.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/tokenizers/unicode_text.h"

namespace tessera::models {

class TextPattern {
 public:
  // Reads {"String": TEXT} or {"Regex": EXPRESSION}. Returns InvalidArgument with the construct that is not supported.
  static absl::StatusOr<TextPattern> Read(const base::Json* json);
  static absl::StatusOr<TextPattern> Literal(std::string_view utf8);
  static absl::StatusOr<TextPattern> Regex(std::string_view expression);

  // A non-empty run of characters of the text.
  struct Match {
    size_t begin, end;
  };

  class Finder {
   public:
    explicit Finder(const TextPattern& pattern);
    // Finds the matches from left to right, without overlaps. Returns InvalidArgument if the expression needs more
    // steps than a bound that is linear in the text.
    absl::Status Find(std::span<const TracedChar> text, std::vector<Match>& matches);

   private:
    void FindLiteral(std::span<const TracedChar> text, std::vector<Match>& matches) const;

    const TextPattern& pattern_;
    std::unique_ptr<URegularExpression, decltype(&uregex_close)> expression_;
    std::u16string units_;
    std::vector<size_t> characters_;  // for every UTF-16 unit, the index of its character
  };

 private:
  TextPattern() = default;

  std::u32string literal_;
  std::shared_ptr<const URegularExpression> expression_;
};

}  // namespace tessera::models
