// The post-processor of a tokenizer.json: the tokens before and behind those of a text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"

namespace tessera::models {

struct TokenFrame {
  std::vector<int64_t> before, after;
};

// `json` may be null. InvalidArgument, naming the part: a type that is not supported, bad fields, a template that does
// not have the text once.
absl::StatusOr<TokenFrame> ReadTokenFrame(const base::Json* json, const std::string& name);

}  // namespace tessera::models
