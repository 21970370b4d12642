// Reads and writes a described struct (base/fields/fields.h) as a YAML mapping: each field is a key, which may be
// absent when it is read. A struct with another form in YAML has its own ReadYamlField and WriteYamlField in its
// namespace.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "base/fields/fields.h"
#include "base/yaml/yaml_reader.h"

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
    static_assert(!std::is_same_v<Valid, Content> && !std::is_same_v<Valid, Bytes>,
                  "a configuration cannot express this kind");
    mapping(name, value);  // a flag, a choice or a duration
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

template <Described T>
void WriteYamlFields(YAML::Emitter& out, const T& value);

template <class T>
void WriteYamlField(YAML::Emitter& out, const char* name, const T& value) {
  out << YAML::Key << name << YAML::Value;
  if constexpr (Described<T>) {
    WriteYamlFields(out, value);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    out << YAML::Flow << YAML::BeginSeq;
    for (const std::string& item : value) out << YAML::DoubleQuoted << item;
    out << YAML::EndSeq;
  } else if constexpr (std::is_same_v<T, absl::Duration>) {
    out << absl::FormatDuration(value);
  } else if constexpr (NamedEnum<T>) {
    out << YAML::DoubleQuoted << EnumName(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    out << YAML::DoubleQuoted << value;
  } else {
    out << value;  // a flag or a number
  }
}

// Writes every field, so that ReadYamlFields reads an equal value from the text.
template <Described T>
void WriteYamlFields(YAML::Emitter& out, const T& value) {
  out << YAML::BeginMap;
  ForEachField([&out](const auto& field, const auto& member) { WriteYamlField(out, field.name, member); }, value);
  out << YAML::EndMap;
}

}  // namespace tessera::base
