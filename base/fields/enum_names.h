// The names of an enumeration's values as used by users, configurations and messages, each defined once.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tessera::base {

// An enumeration whose values count up from 0, with a function NamesOf(Enum) in its namespace that returns their names
// in this order as a std::array.
template <typename Enum>
concept NamedEnum = std::is_enum_v<Enum> && requires(Enum value) {
  NamesOf(value);
};

template <NamedEnum Enum>
inline constexpr auto kEnumNames = NamesOf(Enum());

template <NamedEnum Enum>
constexpr const char* EnumName(Enum value) {
  return kEnumNames<Enum>[static_cast<size_t>(value)];
}

// Returns nothing if `name` is not a name of the enumeration.
template <NamedEnum Enum>
constexpr std::optional<Enum> EnumOf(std::string_view name) {
  for (size_t i = 0; i < kEnumNames<Enum>.size(); ++i) {
    if (name == kEnumNames<Enum>[i]) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

// Returns all names, for a message about an invalid one.
template <NamedEnum Enum>
std::vector<std::string> EnumNames() {
  return {kEnumNames<Enum>.begin(), kEnumNames<Enum>.end()};
}

}  // namespace tessera::base
