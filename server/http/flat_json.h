// JSON objects of scalars and lists of numbers, as request bodies are. Read without recursion, whatever the depth of
// the text, with every digit of a number.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::server {

// Whole numbers within 64 bits keep their type; a double is finite.
using JsonScalar = std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string>;

struct FlatJsonMember {
  std::string name;
  std::variant<JsonScalar, std::vector<JsonScalar>> value;
};

// INVALID_ARGUMENT, with the offset or the member in question, for what is not valid JSON in UTF-8, not an object, has
// a member twice, or holds an object or a list of lists.
absl::StatusOr<std::vector<FlatJsonMember>> ReadFlatJson(absl::string_view text);

// "a string", "a whole number", "null": for messages.
std::string JsonTypeName(const FlatJsonMember& member);

}  // namespace tessera::server
