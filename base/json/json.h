// JSON read from a model's files: parsed once, validated, immutable afterwards.
//
// Json is a cheap handle on a shared tree. ConfigReader gives typed access to one config object and records every
// mistake and every unread field, so that a partly understood config is never accepted silently. Json is thread-safe
// (immutable); a ConfigReader must be used by one thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::base {

struct JsonMember;

class Json {
 public:
  enum class Type { kNull, kBool, kInt, kNumber, kString, kArray, kObject };

  Json() = default;  // null

  Type type() const { return static_cast<Type>(value_.index()); }
  bool is_null() const { return type() == Type::kNull; }
  bool is_array() const { return type() == Type::kArray; }
  bool is_object() const { return type() == Type::kObject; }

  // These return the value, or nothing if it has another type. AsInt accepts integers written without point or exponent
  // that fit into 64 bits; AsNumber accepts every number, including NaN and the infinities.
  std::optional<bool> AsBool() const;
  std::optional<int64_t> AsInt() const;
  std::optional<double> AsNumber() const;
  const std::string* AsString() const;  // owned by this value's tree

  // The elements of an array, or the members of an object in the order of the text; empty for every other type.
  std::span<const Json> items() const;
  std::span<const JsonMember> members() const;

  // Returns the member of that name, or null if there is none or this is not an object. Logarithmic time.
  const Json* Find(std::string_view key) const;

  // Returns a short description for error messages: 12, "text", a list of 3 values.
  std::string Describe() const;

 private:
  friend class JsonBuilder;
  struct Object;
  // An empty array or object has no allocation. The order of the alternatives is that of Type.
  std::variant<std::monostate, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const std::vector<Json>>, std::shared_ptr<const Object>>
      value_;
};

struct JsonMember {
  std::string key;
  Json value;
};

inline constexpr size_t kMaxJsonBytes = 64 << 20;

// Parses one JSON text. In addition to the standard, the literals NaN, Infinity and -Infinity are accepted, as Python
// writes them. Returns InvalidArgument with `what`, line and column for bad syntax, duplicate keys, nesting deeper than
// 64, more than four million values, bytes after the value, invalid UTF-8, or a text longer than max_bytes. Never
// throws.
absl::StatusOr<Json> ParseJson(std::string_view text, const std::string& what, size_t max_bytes = kMaxJsonBytes);

// Returns `text` in double quotes for an error message: control characters are escaped, and texts longer than max_bytes
// are truncated.
std::string Quote(std::string_view text, size_t max_bytes = 100);

// Typed access to one JSON object. A field that is null or absent has the default. A field of the wrong type or out of
// range also has the default, and its error is recorded: check status() once everything has been read.
class ConfigReader {
 public:
  // `name` appears in errors, e.g. "transformer/config.json". The text must be a JSON object.
  static absl::StatusOr<ConfigReader> FromText(std::string_view text, const std::string& name);
  static absl::StatusOr<ConfigReader> FromJson(Json json, const std::string& name);
  static absl::StatusOr<ConfigReader> FromFile(const std::string& path, const std::string& name);

  static constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
  static constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  // Returns whether the field is present and not null. Does not count as reading the field.
  bool Has(std::string_view key) const;

  bool Bool(std::string_view key, bool fallback);
  int64_t Int(std::string_view key, int64_t fallback, int64_t min = kLowest, int64_t max = kHighest);
  // Integers count as numbers. NaN is an error. The infinities are valid only if the bounds admit them.
  double Number(std::string_view key, double fallback, double min = -kInfinity, double max = kInfinity);
  std::string String(std::string_view key, std::string_view fallback);
  // One of the valid texts; the error lists them.
  std::string Choice(std::string_view key, std::string_view fallback, std::initializer_list<std::string_view> valid);
  std::vector<int64_t> Ints(std::string_view key, std::vector<int64_t> fallback, int64_t min = kLowest,
                            int64_t max = kHighest);
  std::vector<double> Numbers(std::string_view key, std::vector<double> fallback);
  std::vector<std::string> Strings(std::string_view key, std::vector<std::string> fallback);

  // Fields without a default: null or absent is an error; the value is then 0, false or empty.
  bool RequiredBool(std::string_view key);
  int64_t RequiredInt(std::string_view key, int64_t min = kLowest, int64_t max = kHighest);
  double RequiredNumber(std::string_view key, double min = -kInfinity, double max = kInfinity);
  std::string RequiredString(std::string_view key);
  std::vector<int64_t> RequiredInts(std::string_view key, int64_t min = kLowest, int64_t max = kHighest);

  // Records an error about a field that the caller detected, e.g. two fields that contradict each other: "NAME: field
  // "KEY" is VALUE; REQUIREMENT".
  void AddError(std::string_view key, const std::string& requirement);

  // Marks fields as known but irrelevant. Names beginning with "_" are always known.
  void Ignore(std::initializer_list<std::string_view> keys);

  // Returns OK, or one InvalidArgument with all errors so far, one per line.
  absl::Status status() const;
  // Returns the fields that were neither read nor ignored, in the order of the file.
  std::vector<std::string> UnknownFields() const;

  const std::string& name() const { return name_; }
  const Json& json() const { return json_; }

 private:
  ConfigReader(Json json, const std::string& name) : json_(std::move(json)), name_(name) {}

  const Json* Take(std::string_view key);          // marks the field as read; null if null or absent
  const Json* TakeRequired(std::string_view key);  // records an error if null or absent
  std::optional<bool> ToBool(std::string_view key, const Json* value);
  std::optional<int64_t> ToInt(std::string_view key, const Json* value, int64_t min, int64_t max);
  std::optional<double> ToNumber(std::string_view key, const Json* value, double min, double max);
  std::optional<std::string> ToString(std::string_view key, const Json* value);
  std::optional<std::vector<int64_t>> ToInts(std::string_view key, const Json* value, int64_t min, int64_t max);
  std::optional<std::vector<std::string>> ToStrings(std::string_view key, const Json* value);

  Json json_;
  std::string name_;
  std::set<std::string, std::less<>> known_;
  std::vector<std::string> errors_;
};

}  // namespace tessera::base
