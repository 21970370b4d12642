// A pattern of a tokenizer.json: a literal text, or a regular expression in Oniguruma's syntax.
//
// Expressions are run by ICU. The two engines give other meanings to some escapes, anchors and braces, so an expression
// is read here and written anew with every literal as a number; a construct that is not read is refused by name. Of
// what is read both find the same, as far as their versions of Unicode agree. Immutable and thread-safe; a Finder
// belongs to one thread.
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
#include "base/json.h"
#include "models/tokenizers/unicode_text.h"

namespace tessera::models {

class TextPattern {
 public:
  // Of {"String": TEXT} or {"Regex": EXPRESSION}. InvalidArgument says which construct is not supported.
  static absl::StatusOr<TextPattern> Read(const base::Json* json);
  static absl::StatusOr<TextPattern> Literal(std::string_view utf8);
  static absl::StatusOr<TextPattern> Regex(std::string_view expression);

  // A run of characters of the text, never empty.
  struct Match {
    size_t begin, end;
  };

  class Finder {
   public:
    explicit Finder(const TextPattern& pattern);
    // From left to right, none overlapping. InvalidArgument: an expression that needs more steps than a bound which is
    // linear in the text.
    absl::Status Find(std::span<const TracedChar> text, std::vector<Match>& matches);

   private:
    void FindLiteral(std::span<const TracedChar> text, std::vector<Match>& matches) const;

    const TextPattern& pattern_;
    std::unique_ptr<URegularExpression, decltype(&uregex_close)> expression_;
    std::u16string units_;
    std::vector<size_t> characters_;  // for every unit, which character it belongs to
  };

 private:
  TextPattern() = default;

  std::u32string literal_;
  std::shared_ptr<const URegularExpression> expression_;
};

}  // namespace tessera::models
