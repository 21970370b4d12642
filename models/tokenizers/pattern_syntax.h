// Oniguruma's regular expressions, read and written anew for ICU.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::models {

// Translates an expression into one for ICU, in ASCII. It may have literals, ".", alternatives, groups, (?:…), (?i:…),
// (?=…), (?!…), (?>…), classes, the quantifiers, \s \S \d \D \w \W, \p{…} of general categories and common scripts,
// and escapes of single characters. InvalidArgument names what else the expression has, and where.
absl::StatusOr<std::string> TranslateExpression(std::string_view expression);

}  // namespace tessera::models
