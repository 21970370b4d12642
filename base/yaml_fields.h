// Reads a described struct (base/fields.h) from a YAML mapping: each field is a key, which may be absent.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/yaml_reader.h"

namespace tessera::base {

inline YamlRange RangeOf(const Integer& valid) {
  return {static_cast<double>(valid.low), static_cast<double>(valid.high)};
}
inline YamlRange RangeOf(const Number& valid) { return {valid.low, valid.high}; }

template <Described T>
void ReadYamlFields(YamlMapping& mapping, T& value);

template <class T, class Valid>
void ReadYamlField(YamlMapping& mapping, const char* name, T& value, const Valid& valid) {
  if constexpr (std::is_same_v<Valid, Integer>) {
    int64_t number = static_cast<int64_t>(value);
    mapping(name, number, RangeOf(valid));
    value = static_cast<T>(number);
  } else if constexpr (std::is_same_v<Valid, Number>) {
    mapping(name, value, RangeOf(valid));
  } else if constexpr (std::is_same_v<Valid, Nested>) {
    mapping.Nested(name, [&value](YamlMapping& inner) { ReadYamlFields(inner, value); });
  } else if constexpr (std::is_same_v<Valid, Text>) {
    if (valid.is_path) return mapping.Path(name, value);
    mapping(name, value);
  } else {
    mapping(name, value);  // a flag or a choice
  }
}

template <class T, class Each>
void ReadYamlField(YamlMapping& mapping, const char* name, std::vector<T>& values, const List<Each>& valid) {
  if constexpr (std::is_same_v<Each, Nested>) {
    mapping.Each(name, values, [](YamlMapping& inner, T& value) { ReadYamlFields(inner, value); });
  } else if constexpr (std::is_same_v<Each, Text>) {
    mapping(name, values);
  } else {
    mapping(name, values, RangeOf(valid.each));
  }
}

// Leaves a field alone where its key is absent.
template <Described T>
void ReadYamlFields(YamlMapping& mapping, T& value) {
  ForEachField([&mapping](const auto& field, auto& member) { ReadYamlField(mapping, field.name, member, field.valid); },
               value);
}

}  // namespace tessera::base
