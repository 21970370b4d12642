#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files/file.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"

namespace tessera::base {

namespace {

constexpr size_t kMaxConfigBytes = 16 << 20;

// Returns " from 1 to 64", " of at least 1", " of at most 64" or an empty string; the extreme values of a type mean no
// bound.
template <typename T>
std::string Bounds(T min, T max, T lowest, T highest) {
  if (min != lowest && max != highest) return absl::StrCat(" from ", min, " to ", max);
  if (min != lowest) return absl::StrCat(" of at least ", min);
  if (max != highest) return absl::StrCat(" of at most ", max);
  return "";
}

std::string ValidInt(int64_t min, int64_t max) {
  return "a whole number" + Bounds(min, max, ConfigReader::kLowest, ConfigReader::kHighest);
}

}  // namespace

absl::StatusOr<ConfigReader> ConfigReader::FromText(std::string_view text, const std::string& name) {
  absl::StatusOr<Json> json = ParseJson(text, name, kMaxConfigBytes);
  return json.ok() ? FromJson(*std::move(json), name) : json.status();
}

absl::StatusOr<ConfigReader> ConfigReader::FromJson(Json json, const std::string& name) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": holds ", json.Describe(), "; it must be a JSON object"));
  }
  return ConfigReader(std::move(json), name);
}

absl::StatusOr<ConfigReader> ConfigReader::FromFile(const std::string& path, const std::string& name) {
  ASSIGN_OR_RETURN(std::string text, ReadWholeFile(path, name, kMaxConfigBytes));
  return FromText(text, name);
}

bool ConfigReader::Has(std::string_view key) const {
  const Json* value = json_.Find(key);
  return value != nullptr && !value->is_null();
}

const Json* ConfigReader::Take(std::string_view key) {
  known_.emplace(key);
  const Json* value = json_.Find(key);
  return value != nullptr && !value->is_null() ? value : nullptr;
}

const Json* ConfigReader::TakeRequired(std::string_view key) {
  const Json* value = Take(key);
  if (value == nullptr) {
    errors_.push_back(absl::StrCat(name_, ": field ", Quote(key), json_.Find(key) ? " is null" : " is missing",
                                   "; it has no default"));
  }
  return value;
}

void ConfigReader::AddError(std::string_view key, const std::string& requirement) {
  const Json* value = json_.Find(key);
  errors_.push_back(absl::StrCat(name_, ": field ", Quote(key), value ? " is " + value->Describe() : " is missing",
                                 "; ", requirement));
}

std::optional<bool> ConfigReader::ToBool(std::string_view key, const Json* value) {
  if (value == nullptr) return std::nullopt;
  const std::optional<bool> result = value->AsBool();
  if (!result) AddError(key, "it must be true or false");
  return result;
}

std::optional<int64_t> ConfigReader::ToInt(std::string_view key, const Json* value, int64_t min, int64_t max) {
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> result = value->AsInt();
  if (!result || *result < min || *result > max) {
    AddError(key, "it must be " + ValidInt(min, max));
    return std::nullopt;
  }
  return result;
}

std::optional<double> ConfigReader::ToNumber(std::string_view key, const Json* value, double min, double max) {
  if (value == nullptr) return std::nullopt;
  const std::optional<double> result = value->AsNumber();
  if (!result || std::isnan(*result) || *result < min || *result > max) {
    AddError(key, "it must be a number" + Bounds(min, max, -kInfinity, kInfinity));
    return std::nullopt;
  }
  return result;
}

std::optional<std::string> ConfigReader::ToString(std::string_view key, const Json* value) {
  if (value == nullptr) return std::nullopt;
  const std::string* result = value->AsString();
  if (result == nullptr) {
    AddError(key, "it must be a text");
    return std::nullopt;
  }
  return *result;
}

std::optional<std::vector<int64_t>> ConfigReader::ToInts(std::string_view key, const Json* value, int64_t min,
                                                         int64_t max) {
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) {
    AddError(key, "it must be a list, each value " + ValidInt(min, max));
    return std::nullopt;
  }
  std::vector<int64_t> result;
  for (const Json& item : value->items()) {
    const std::optional<int64_t> number = item.AsInt();
    if (!number || *number < min || *number > max) {
      AddError(key,
               absl::StrCat("value ", result.size(), " is ", item.Describe(), "; it must be ", ValidInt(min, max)));
      return std::nullopt;
    }
    result.push_back(*number);
  }
  return result;
}

std::optional<std::vector<std::string>> ConfigReader::ToStrings(std::string_view key, const Json* value) {
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) {
    AddError(key, "it must be a list of texts");
    return std::nullopt;
  }
  std::vector<std::string> result;
  for (const Json& item : value->items()) {
    if (item.AsString() == nullptr) {
      AddError(key, absl::StrCat("value ", result.size(), " is ", item.Describe(), "; it must be a text"));
      return std::nullopt;
    }
    result.push_back(*item.AsString());
  }
  return result;
}

bool ConfigReader::Bool(std::string_view key, bool fallback) { return ToBool(key, Take(key)).value_or(fallback); }

int64_t ConfigReader::Int(std::string_view key, int64_t fallback, int64_t min, int64_t max) {
  return ToInt(key, Take(key), min, max).value_or(fallback);
}

double ConfigReader::Number(std::string_view key, double fallback, double min, double max) {
  return ToNumber(key, Take(key), min, max).value_or(fallback);
}

std::string ConfigReader::String(std::string_view key, std::string_view fallback) {
  return ToString(key, Take(key)).value_or(std::string(fallback));
}

std::string ConfigReader::Choice(std::string_view key, std::string_view fallback,
                                 std::initializer_list<std::string_view> valid) {
  const Json* value = Take(key);
  if (value == nullptr) return std::string(fallback);
  for (std::string_view choice : valid) {
    if (value->AsString() != nullptr && *value->AsString() == choice) return std::string(choice);
  }
  AddError(key, absl::StrCat("it must be one of ", absl::StrJoin(valid, ", ", [](std::string* out, auto choice) {
                               absl::StrAppend(out, Quote(choice));
                             })));
  return std::string(fallback);
}

std::vector<int64_t> ConfigReader::Ints(std::string_view key, std::vector<int64_t> fallback, int64_t min, int64_t max) {
  return ToInts(key, Take(key), min, max).value_or(std::move(fallback));
}

std::vector<double> ConfigReader::Numbers(std::string_view key, std::vector<double> fallback) {
  const Json* value = Take(key);
  if (value == nullptr) return fallback;
  std::vector<double> result;
  bool valid = value->is_array();
  for (const Json& item : value->items()) {
    const std::optional<double> number = item.AsNumber();
    valid = valid && number && !std::isnan(*number);
    if (valid) result.push_back(*number);
  }
  if (valid) return result;
  AddError(key, "it must be a list of numbers");
  return fallback;
}

std::vector<std::string> ConfigReader::Strings(std::string_view key, std::vector<std::string> fallback) {
  return ToStrings(key, Take(key)).value_or(std::move(fallback));
}

bool ConfigReader::RequiredBool(std::string_view key) { return ToBool(key, TakeRequired(key)).value_or(false); }

int64_t ConfigReader::RequiredInt(std::string_view key, int64_t min, int64_t max) {
  return ToInt(key, TakeRequired(key), min, max).value_or(0);
}

double ConfigReader::RequiredNumber(std::string_view key, double min, double max) {
  return ToNumber(key, TakeRequired(key), min, max).value_or(0);
}

std::string ConfigReader::RequiredString(std::string_view key) { return ToString(key, TakeRequired(key)).value_or(""); }

std::vector<int64_t> ConfigReader::RequiredInts(std::string_view key, int64_t min, int64_t max) {
  return ToInts(key, TakeRequired(key), min, max).value_or(std::vector<int64_t>());
}

void ConfigReader::Ignore(std::initializer_list<std::string_view> keys) {
  for (std::string_view key : keys) known_.emplace(key);
}

absl::Status ConfigReader::status() const {
  if (errors_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(errors_, "\n"));
}

std::vector<std::string> ConfigReader::UnknownFields() const {
  std::vector<std::string> unknown;
  for (const JsonMember& member : json_.members()) {
    if (!member.key.starts_with('_') && known_.find(member.key) == known_.end()) unknown.push_back(member.key);
  }
  return unknown;
}

}  // namespace tessera::base
