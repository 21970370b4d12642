// JSON objects of scalars, lists of scalars and lists of objects of scalars, as request bodies are. Read without
// recursion, whatever the depth of the text, with every digit of a number.
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

// One of a list of objects: its members in the order of the text, each name once.
using JsonGroup = std::vector<std::pair<std::string, JsonScalar>>;

struct FlatJsonMember {
  std::string name;
  std::variant<JsonScalar, std::vector<JsonScalar>, std::vector<JsonGroup>> value;  // an empty list is one of scalars
};

// INVALID_ARGUMENT, with the offset or the member in question, for what is not valid JSON in UTF-8, not an object, has
// a member twice, or holds an object, a list of lists, or an object deeper than in a list.
absl::StatusOr<std::vector<FlatJsonMember>> ReadFlatJson(absl::string_view text);

// "a string", "a whole number", "null": for messages.
std::string JsonTypeName(const FlatJsonMember& member);

}  // namespace tessera::server
