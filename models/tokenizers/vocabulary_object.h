// The vocabulary of a tokenizer.json's model as an object that gives every text its id.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "models/tokenizers/token_table.h"
#include "models/tokenizers/tokenizer_parts.h"

namespace tessera::models {

// Reads the field "vocab". InvalidArgument: not such an object, an id that is negative, beyond a bound or given twice.
absl::StatusOr<TokenTable<int32_t>> ReadVocabularyObject(TokenizerPart& part);

// Of the field that names the unknown token; nothing if it is null. InvalidArgument: it is not in the vocabulary.
absl::StatusOr<std::optional<int32_t>> FindUnknown(TokenizerPart& part, const TokenTable<int32_t>& vocabulary);

}  // namespace tessera::models
