// TokenizerPart is a component in a tokenizer.json, such as a normalizer: it has a type and fields that depend on the
// type. Sequences of parts may be nested.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/json/json.h"

namespace tessera::models {

struct TokenizerPart {
  std::string type;
  base::ConfigReader fields;

  // Must be called after all fields have been read. Returns InvalidArgument for an invalid or unread field.
  absl::Status Finish();
  absl::Status Refuse(const std::string& what) const;  // "NAME: WHAT"
};

// Returns the parts in order, with sequences flattened; none if `json` is null. `list_key` is the field in which a
// sequence lists its parts.
absl::StatusOr<std::vector<TokenizerPart>> ReadParts(const base::Json* json, const std::string& name,
                                                     const std::string& list_key);

// Returns "NAME: the type "T" is not supported; valid values are …".
absl::Status UnknownPart(const TokenizerPart& part, std::vector<std::string> known);

}  // namespace tessera::models
