// A described struct (base/fields/fields.h) as JSON, which is YAML as well: every field with its value, in their order.
#pragma once

#include <charconv>
#include <string>
#include <vector>

#include "base/fields/fields.h"

namespace tessera::base {

// `text` as JSON with its quotes. It must be UTF-8.
std::string JsonFieldText(const std::string& text);
// The fewest digits that read back as the same number.
std::string ShortestDigits(double number);

template <class T>
std::string JsonOfFields(const T& value) {
  if constexpr (Described<T>) {
    std::string json;
    ForEachField(
        [&json](const auto& field, const auto& member) {
          json.append(json.empty() ? "\"" : ", \"").append(field.name).append("\": ").append(JsonOfFields(member));
        },
        value);
    return "{" + json + "}";
  } else if constexpr (kIsList<T>) {
    std::string json;
    for (const auto& item : value) json.append(json.empty() ? "" : ", ").append(JsonOfFields(item));
    return "[" + json + "]";
  } else if constexpr (NamedEnum<T>) {
    return JsonFieldText(EnumName(value));
  } else if constexpr (std::is_same_v<T, std::string>) {
    return JsonFieldText(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, double>) {
    return ShortestDigits(value);
  } else {
    return std::to_string(value);
  }
}

}  // namespace tessera::base
