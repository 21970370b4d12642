// MessageWriter and MessageReader copy the fields of a protobuf message from and to plain values, by their descriptors.
// Code that walks over described structs uses them for each type of field. An enum is written with its number, or with
// its name if the message's field is text; on reading, an unknown name becomes a number that no enumerator has. Absent
// optionals are not written.
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/fields/enum_names.h"
#include "base/fields/fields.h"

namespace tessera::control {

class MessageWriter {
 public:
  using Field = const google::protobuf::FieldDescriptor*;

  explicit MessageWriter(google::protobuf::Message& message)
      : message_(&message), reflection_(*message.GetReflection()) {}

  void Put(Field to, bool from) const { reflection_.SetBool(message_, to, from); }
  void Put(Field to, int32_t from) const { reflection_.SetInt32(message_, to, from); }
  void Put(Field to, int64_t from) const { reflection_.SetInt64(message_, to, from); }
  void Put(Field to, uint64_t from) const { reflection_.SetUInt64(message_, to, from); }
  void Put(Field to, double from) const { reflection_.SetDouble(message_, to, from); }
  void Put(Field to, const std::string& from) const { reflection_.SetString(message_, to, from); }
  template <typename T>
  requires std::is_enum_v<T>
  void Put(Field to, T from) const {
    if constexpr (base::NamedEnum<T>) {
      if (to->type() == to->TYPE_STRING) return Put(to, std::string(base::EnumName(from)));
    }
    reflection_.SetEnumValue(message_, to, static_cast<int>(from));
  }
  template <typename T>
  void Put(Field to, const std::optional<T>& from) const {
    if (from.has_value()) Put(to, *from);
  }
  template <typename T>
  void Put(Field to, const std::vector<T>& from) const {
    for (const T& value : from) Add(to, value);
  }

  void Add(Field to, int32_t from) const { reflection_.AddInt32(message_, to, from); }
  void Add(Field to, int64_t from) const { reflection_.AddInt64(message_, to, from); }
  void Add(Field to, const std::string& from) const { reflection_.AddString(message_, to, from); }
  // Writes each field of the struct to the message's field of the same name, if there is one. A field that is not
  // repeated is a list of at most one.
  template <base::Described T>
  void Add(Field to, const T& from) const {
    const MessageWriter item(to->is_repeated() ? AddMessage(to) : PutMessage(to));
    base::ForEachField(
        [&](const auto& field, const auto& value) {
          if (const Field own = to->message_type()->FindFieldByName(field.name)) item.Put(own, value);
        },
        from);
  }

  google::protobuf::Message& PutMessage(Field to) const { return *reflection_.MutableMessage(message_, to); }
  google::protobuf::Message& AddMessage(Field to) const { return *reflection_.AddMessage(message_, to); }

 private:
  google::protobuf::Message* message_;
  const google::protobuf::Reflection& reflection_;
};

class MessageReader {
 public:
  using Field = const google::protobuf::FieldDescriptor*;

  explicit MessageReader(const google::protobuf::Message& message)
      : message_(message), reflection_(*message.GetReflection()) {}

  bool Has(Field field) const { return reflection_.HasField(message_, field); }
  int Size(Field field) const { return reflection_.FieldSize(message_, field); }

  void Get(Field from, bool& to) const { to = reflection_.GetBool(message_, from); }
  void Get(Field from, int32_t& to) const { to = reflection_.GetInt32(message_, from); }
  void Get(Field from, int64_t& to) const { to = reflection_.GetInt64(message_, from); }
  void Get(Field from, uint64_t& to) const { to = reflection_.GetUInt64(message_, from); }
  void Get(Field from, double& to) const { to = reflection_.GetDouble(message_, from); }
  void Get(Field from, std::string& to) const { to = reflection_.GetStringReference(message_, from, &to); }
  template <typename T>
  requires std::is_enum_v<T>
  void Get(Field from, T& to) const {
    if constexpr (base::NamedEnum<T>) {
      if (from->type() == from->TYPE_STRING) {
        std::string name;
        Get(from, name);
        if (!name.empty()) to = base::EnumOf<T>(name).value_or(static_cast<T>(base::kEnumNames<T>.size()));
        return;
      }
    }
    to = static_cast<T>(reflection_.GetEnumValue(message_, from));
  }
  template <typename T>
  void Get(Field from, std::optional<T>& to) const {
    Get(from, to.emplace());
  }
  template <typename T>
  void Get(Field from, std::vector<T>& to) const {
    if constexpr (base::Described<T>) {
      if (!from->is_repeated()) return GetMembers(GetMessage(from), to.emplace_back());
    }
    for (int i = 0; i < Size(from); ++i) GetItem(from, i, to.emplace_back());
  }

  void GetItem(Field from, int i, int32_t& to) const { to = reflection_.GetRepeatedInt32(message_, from, i); }
  void GetItem(Field from, int i, int64_t& to) const { to = reflection_.GetRepeatedInt64(message_, from, i); }
  void GetItem(Field from, int i, std::string& to) const { to = reflection_.GetRepeatedString(message_, from, i); }

  template <base::Described T>
  void GetItem(Field from, int i, T& to) const {
    GetMembers(GetMessage(from, i), to);
  }

  const google::protobuf::Message& GetMessage(Field from) const { return reflection_.GetMessage(message_, from); }
  const google::protobuf::Message& GetMessage(Field from, int i) const {
    return reflection_.GetRepeatedMessage(message_, from, i);
  }

 private:
  template <base::Described T>
  static void GetMembers(const google::protobuf::Message& from, T& to) {
    const MessageReader item(from);
    const auto read = [&](const auto& described, auto& value) {
      const Field field = from.GetDescriptor()->FindFieldByName(described.name);
      if (!field->has_presence() || item.Has(field)) item.Get(field, value);
    };
    base::ForEachField(read, to);
  }

  const google::protobuf::Message& message_;
  const google::protobuf::Reflection& reflection_;
};

}  // namespace tessera::control
