// The names of an enumeration's values, as users, configurations and messages spell them: each in one place.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tessera::base {

// An enumeration whose values count up from 0, with a function NamesOf(Enum) beside it that returns their names in this
// order as a std::array.
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

// Nothing for a text that is no name.
template <NamedEnum Enum>
constexpr std::optional<Enum> EnumOf(std::string_view name) {
  for (size_t i = 0; i < kEnumNames<Enum>.size(); ++i) {
    if (name == kEnumNames<Enum>[i]) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

// All of them, for a message about a text that is none.
template <NamedEnum Enum>
std::vector<std::string> EnumNames() {
  return {kEnumNames<Enum>.begin(), kEnumNames<Enum>.end()};
}

}  // namespace tessera::base
