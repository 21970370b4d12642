// The names of an enumeration's values, as users, configurations and messages spell them: each in one place.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// In the order of the values, which count up from 0. Specialised beside the enumeration.
template <typename Enum>
inline constexpr std::array<const char*, 0> kEnumNames = {};

template <typename Enum>
constexpr const char* EnumName(Enum value) {
  return kEnumNames<Enum>[static_cast<size_t>(value)];
}

// Nothing for a text that is no name.
template <typename Enum>
constexpr std::optional<Enum> EnumOf(std::string_view name) {
  for (size_t i = 0; i < kEnumNames<Enum>.size(); ++i) {
    if (name == kEnumNames<Enum>[i]) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

// All of them, for a message about a text that is none.
template <typename Enum>
std::vector<std::string> EnumNames() {
  return {kEnumNames<Enum>.begin(), kEnumNames<Enum>.end()};
}

}  // namespace tessera
