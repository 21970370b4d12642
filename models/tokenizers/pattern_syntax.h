// Translates Oniguruma's regular expressions to ICU's syntax.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::models {

// Returns the expression for ICU, in ASCII. Supported are literals, ".", alternatives, groups, (?:…), (?i:…), (?=…),
// (?!…), (?>…), classes, the quantifiers, \s \S \d \D \w \W, \p{…} of general categories and common scripts, and
// escapes of single characters. Returns InvalidArgument with the name and position of any other construct.
absl::StatusOr<std::string> TranslateExpression(std::string_view expression);

}  // namespace tessera::models
