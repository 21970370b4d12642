// Reads the post-processor of a tokenizer.json: the tokens before and after those of a text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"

namespace tessera::models {

struct TokenFrame {
  std::vector<int64_t> before, after;
};

// `json` may be null. Returns InvalidArgument, naming the part, for a type that is not supported, for invalid fields,
// and for a template that does not contain the text exactly once.
absl::StatusOr<TokenFrame> ReadTokenFrame(const base::Json* json, const std::string& name);

}  // namespace tessera::models
