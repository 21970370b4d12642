// Reads JSON objects of scalars, lists of scalars and lists of objects of scalars, the form of request bodies. It uses
// no recursion, whatever the depth of the text, and keeps every digit of a number.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::server {

// Integers within 64 bits keep their type; a double is finite.
using JsonScalar = std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string>;

// One of a list of objects: its members in the order of the text, with unique names.
using JsonGroup = std::vector<std::pair<std::string, JsonScalar>>;

struct FlatJsonMember {
  std::string name;
  std::variant<JsonScalar, std::vector<JsonScalar>, std::vector<JsonGroup>> value;  // empty lists are of scalars
};

// Selects members whose values have another form. A null function selects none.
struct OtherForms {
  // Members whose value may be an object, to a depth of 8: each member of that object is read as a member NAME.INNER. A
  // dot in a name of the text is then read as "\\.".
  std::function<bool(absl::string_view name)> opens;
  // Members whose value is not read, whatever it is: null stays null, and all other values are read as true.
  std::function<bool(absl::string_view name)> skips;
  // Members whose value may be one object of scalars, which is read as a list of that object.
  std::function<bool(absl::string_view name)> groups;
};

// INVALID_ARGUMENT, with the offset or the member, for a text that is not valid JSON in UTF-8, is not an object, has a
// member twice, or contains an object, a list of lists, or an object deeper than in a list, where `forms` does not
// select it.
absl::StatusOr<std::vector<FlatJsonMember>> ReadFlatJson(absl::string_view text, const OtherForms& forms = {});

// Returns the number if it is whole and exact as a signed integer, such as 20 and 20.0; else nothing.
std::optional<int64_t> WholeNumber(const JsonScalar& scalar);

bool IsNull(const FlatJsonMember& member);

// Returns "a string", "a whole number", "null": for messages.
std::string JsonTypeName(const FlatJsonMember& member);

}  // namespace tessera::server
