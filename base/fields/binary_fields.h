// Described structs (base/fields/fields.h) as bytes, for two programs of one build: fields follow each other in their
// order, without names or numbers. Numbers are little-endian; texts and lists begin with their length.
//
// The reader trusts nothing: a length beyond the end, bytes left over and every value that is not valid are errors.
#pragma once

#include <bit>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/fields/fields.h"

namespace tessera::base {

static_assert(std::endian::native == std::endian::little);

class BinaryWriter {
 public:
  template <class T, class Valid>
  void Put(const T& value, const Valid& valid) {
    if constexpr (kIsOptional<T>) {
      PutRaw(static_cast<uint8_t>(value.has_value()));
      if (value.has_value()) Put(*value, valid);
    } else if constexpr (kIsList<T>) {
      PutList(value, valid);
    } else if constexpr (std::is_same_v<Valid, Nested>) {
      ForEachField([this](const auto& field, const auto& member) { Put(member, field.valid); }, value);
    } else if constexpr (std::is_same_v<Valid, Text>) {
      PutText(value, valid);
    } else if constexpr (std::is_same_v<Valid, Bytes> || std::is_same_v<Valid, Content>) {
      PutBytes(value);
    } else if constexpr (std::is_same_v<Valid, Choice>) {
      PutRaw(static_cast<uint8_t>(value));
    } else {
      PutRaw(value);
    }
  }

  std::string Take() { return std::move(bytes_); }

 private:
  template <class T>
  void PutRaw(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PutBytes(std::string_view bytes) {
    PutRaw(static_cast<uint64_t>(bytes.size()));
    bytes_.append(bytes);
  }
  void PutText(const std::string& text, const Text& valid);  // what is not UTF-8 becomes question marks
  template <class T, class Each>
  void PutList(const std::vector<T>& values, const List<Each>& valid) {
    if constexpr (std::is_arithmetic_v<T>) {
      PutBytes({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
    } else {
      PutRaw(static_cast<uint64_t>(values.size()));
      for (const T& value : values) Put(value, valid.each);
    }
  }

  std::string bytes_;
};

class BinaryReader {
 public:
  explicit BinaryReader(std::string_view bytes) : left_(bytes) {}

  // False where the bytes end before the value does.
  template <class T, class Valid>
  bool Get(T& value, const Valid& valid) {
    if constexpr (kIsOptional<T>) {
      uint8_t present;
      if (!GetRaw(present) || present > 1) return false;
      if (present == 0) return value.reset(), true;
      return Get(value.emplace(), valid);
    } else if constexpr (kIsList<T>) {
      return GetList(value, valid);
    } else if constexpr (std::is_same_v<Valid, Nested>) {
      bool ok = true;
      ForEachField([&](const auto& field, auto& member) { ok = ok && Get(member, field.valid); }, value);
      return ok;
    } else if constexpr (std::is_same_v<T, std::string>) {
      std::string_view bytes;
      return GetBytes(bytes) && (value.assign(bytes), true);
    } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<Valid, Choice>) {
      uint8_t number;
      if (!GetRaw(number) || (std::is_same_v<T, bool> && number > 1)) return false;
      value = static_cast<T>(number);
      return true;
    } else {
      return GetRaw(value);
    }
  }

  bool finished() const { return left_.empty(); }

 private:
  template <class T>
  bool GetRaw(T& value) {
    if (left_.size() < sizeof(value)) return false;
    std::memcpy(&value, left_.data(), sizeof(value));
    left_.remove_prefix(sizeof(value));
    return true;
  }
  bool GetBytes(std::string_view& bytes);
  template <class T, class Each>
  bool GetList(std::vector<T>& values, const List<Each>& valid) {
    if constexpr (std::is_arithmetic_v<T>) {
      std::string_view bytes;
      if (!GetBytes(bytes) || bytes.size() % sizeof(T) != 0) return false;
      values.resize(bytes.size() / sizeof(T));
      if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
      return true;
    } else {
      // Each value has a byte at least, so that memory is taken for what has come alone.
      uint64_t count;
      if (!GetRaw(count) || count > left_.size()) return false;
      values.clear();
      for (uint64_t i = 0; i < count; ++i) {
        if (!Get(values.emplace_back(), valid.each)) return false;
      }
      return true;
    }
  }

  std::string_view left_;
};

template <Described T>
std::string EncodeFields(const T& value) {
  BinaryWriter writer;
  writer.Put(value, Nested());
  return writer.Take();
}

// INVALID_ARGUMENT for bytes that are no T, and for values that CheckFields refuses.
template <Described T>
absl::Status DecodeFields(std::string_view bytes, T& value) {
  BinaryReader reader(bytes);
  if (!reader.Get(value, Nested()) || !reader.finished()) {
    return absl::InvalidArgumentError("the bytes are not of the expected struct");
  }
  return CheckFields(value);
}

// Names and kinds of all fields, nested ones too: programs for which it is equal understand each other's bytes.
template <Described T>
std::string FieldsText();

template <class T>
std::string KindText() {
  if constexpr (kIsOptional<T>) {
    return KindText<typename T::value_type>() + "?";
  } else if constexpr (kIsList<T>) {
    return KindText<typename T::value_type>() + "*";
  } else if constexpr (Described<T>) {
    return FieldsText<T>();
  } else if constexpr (NamedEnum<T>) {
    std::string text = "<";
    for (const char* name : kEnumNames<T>) text.append(name).append("|");
    return text + ">";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "text";
  } else if constexpr (std::is_same_v<T, double>) {
    return "number";
  } else {
    return (std::is_signed_v<T> ? "i" : "u") + std::to_string(8 * sizeof(T));
  }
}

template <Described T>
std::string FieldsText() {
  std::string text = "{";
  ForEachFieldOf<T>([&text]<class Struct, class Value, class Valid>(const Field<Struct, Value, Valid>& field) {
    text.append(field.name).append(":").append(KindText<Value>()).append(" ");
  });
  return text + "}";
}

}  // namespace tessera::base
