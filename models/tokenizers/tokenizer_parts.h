// The components that a tokenizer.json lists, such as its normalizers: each has a type and fields of its own, and
// sequences of them may be nested.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/json.h"

namespace tessera::models {

struct TokenizerPart {
  std::string type;
  base::ConfigReader fields;

  // Call once all fields have been read. InvalidArgument: what was wrong with them, or a field that nobody read.
  absl::Status Finish();
  absl::Status Refuse(const std::string& what) const;  // "NAME: WHAT"
};

// In order, sequences flattened; none if `json` is null. `list_key` is the field in which a sequence has its parts.
absl::StatusOr<std::vector<TokenizerPart>> ReadParts(const base::Json* json, const std::string& name,
                                                     const std::string& list_key);

// "NAME: the type "T" is not supported; valid values are …".
absl::Status UnknownPart(const TokenizerPart& part, std::vector<std::string> known);

}  // namespace tessera::models
