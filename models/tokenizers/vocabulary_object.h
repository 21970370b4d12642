// Reads the vocabulary of a tokenizer.json's model from an object that maps every text to its id.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "models/tokenizers/token_table.h"
#include "models/tokenizers/tokenizer_parts.h"

namespace tessera::models {

// Reads the field "vocab". Returns InvalidArgument if it is not such an object, or if an id is negative, beyond a
// bound, or given twice.
absl::StatusOr<TokenTable<int32_t>> ReadVocabularyObject(TokenizerPart& part);

// Returns the id of the unknown token, which a field names; nothing if the field is null. Returns InvalidArgument if
// the token is not in the vocabulary.
absl::StatusOr<std::optional<int32_t>> FindUnknown(TokenizerPart& part, const TokenTable<int32_t>& vocabulary);

}  // namespace tessera::models
