#include "client/cli/train/foreign_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/json_writer.h"
#include "base/macros/status_macros.h"
#include "base/text/utf8.h"
#include "base/toml/toml_document.h"
#include "base/yaml/yaml_document.h"

namespace tessera::client {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr base::YamlBounds kBounds = {.depth = 16, .nodes = 20000, .anchors = 16, .aliases = 64};
// Aliases may repeat a node, and nodes with aliases, many times.
constexpr int kMaxNodes = 100000;

// Writes a tree of YAML as JSON. Returns false if it has too many nodes.
class YamlJson {
 public:
  bool Write(const YAML::Node& node) {
    if (++nodes_ > kMaxNodes) return false;
    switch (node.Type()) {
      case YAML::NodeType::Map:
        json_.BeginObject();
        for (const auto& member : node) {
          json_.Key(member.first.IsScalar() ? member.first.Scalar() : "?");
          if (!Write(member.second)) return false;
        }
        json_.EndObject();
        return true;
      case YAML::NodeType::Sequence:
        json_.BeginArray();
        for (const YAML::Node& item : node) {
          if (!Write(item)) return false;
        }
        json_.EndArray();
        return true;
      case YAML::NodeType::Scalar:
        Scalar(node);
        return true;
      case YAML::NodeType::Null:
      case YAML::NodeType::Undefined:
        break;
    }
    json_.Json("null");
    return true;
  }
  const std::string& text() const { return json_.text(); }

 private:
  // Quoted scalars have the tag "!".
  void Scalar(const YAML::Node& node) {
    double number = 0;
    int64_t integer = 0;
    bool flag = false;
    if (node.Tag() == "!") {
      json_.String(node.Scalar());
    } else if (absl::SimpleAtoi(node.Scalar(), &integer)) {
      json_.Int(integer);
    } else if (YAML::convert<double>::decode(node, number) && std::isfinite(number)) {
      json_.Number(number);
    } else if (YAML::convert<bool>::decode(node, flag)) {
      json_.Bool(flag);
    } else {
      json_.String(node.Scalar());
    }
  }

  base::JsonWriter json_;
  int nodes_ = 0;
};

absl::StatusOr<std::string> YamlToJson(const std::string& text) {
  ASSIGN_OR_RETURN(const YAML::Node document, base::ReadYamlDocument(text, kBounds));
  YamlJson json;
  if (!json.Write(document)) {
    return absl::InvalidArgumentError(absl::StrCat("there are more than ", kMaxNodes, " values"));
  }
  return json.text();
}

bool IsNested(const base::Json& value) {
  return value.is_object() || (value.is_array() && std::ranges::any_of(value.items(), [](const base::Json& item) {
                                 return item.is_object() || item.is_array();
                               }));
}

// Whether the setting has no effect in the programs that write it although it is there.
bool IsOff(const base::Json& value) {
  if (value.is_null() || value.AsBool() == false || value.AsNumber() == 0.0) return true;
  const std::string* const text = value.AsString();
  return text != nullptr ? text->empty() : value.is_array() && value.items().empty();
}

std::string ShortText(const base::Json& value) { return base::ReplaceControlCharacters(value.Describe()); }

std::string ScalarText(const base::Json& value) {
  if (value.AsString() != nullptr) return *value.AsString();
  if (value.AsBool().has_value()) return *value.AsBool() ? "true" : "false";
  if (value.AsInt().has_value()) return absl::StrCat(*value.AsInt());
  return value.AsNumber().has_value() ? base::JsonNumber(*value.AsNumber()) : "";
}

std::optional<double> NumberIn(const base::Json& value) {
  double number = 0;
  if (value.AsNumber().has_value()) number = *value.AsNumber();
  const std::string* const text = value.AsString();
  if (text != nullptr ? !absl::SimpleAtod(*text, &number) : !value.AsNumber().has_value()) return std::nullopt;
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

}  // namespace

absl::StatusOr<base::Json> ParseForeign(const std::string& text, const std::string& path) {
  const auto fail = [&](absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat(path, ": ", what)); };
  if (text.size() > kMaxBytes) return fail(absl::StrCat("the file is larger than ", kMaxBytes, " bytes"));
  const std::string name = absl::AsciiStrToLower(path);
  absl::StatusOr<std::string> json = text;
  if (absl::EndsWith(name, ".toml")) {
    json = base::TomlToJson(text);
  } else if (!absl::EndsWith(name, ".json")) {
    if (base::FirstInvalidUtf8(text) < text.size()) return fail("the file is not UTF-8");
    json = YamlToJson(text);
  }
  if (!json.ok()) return fail(std::string(json.status().message()));
  ASSIGN_OR_RETURN(base::Json root, base::ParseJson(*json, path));
  if (!root.is_object()) return fail("the file is not a mapping of settings");
  return root;
}

ForeignConfig::ForeignConfig(const base::Json& root, const std::string& prefix, bool drops_sections)
    : drops_sections_(drops_sections) {
  Add(root, prefix);
}

void ForeignConfig::Add(const base::Json& value, const std::string& name) {
  if (IsNested(value)) {
    for (const base::JsonMember& member : value.members()) {
      const bool is_bare = name.empty() || (drops_sections_ && !absl::StrContains(name, "["));
      Add(member.value, is_bare ? member.key : absl::StrCat(name, ".", member.key));
    }
    for (size_t i = 0; i < value.items().size(); ++i) Add(value.items()[i], absl::StrCat(name, "[", i, "]"));
    return;
  }
  if (!settings_.emplace(name, Setting{.value = value}).second) {
    notes_.push_back(absl::StrCat(name, " is given twice; the second value, ", ShortText(value), ", is not used"));
    return;
  }
  order_.push_back(name);
}

bool ForeignConfig::Has(std::string_view name) const {
  for (auto found = settings_.lower_bound(name); found != settings_.end(); ++found) {
    const std::string_view rest = found->first;
    if (!rest.starts_with(name)) return false;
    if (rest.size() == name.size() || rest[name.size()] == '.' || rest[name.size()] == '[') return true;
  }
  return false;
}

size_t ForeignConfig::Count(std::string_view name) const {
  size_t count = 0;
  while (Has(absl::StrCat(absl::string_view(name.data(), name.size()), "[", count, "]"))) ++count;
  return count;
}

const base::Json* ForeignConfig::Find(const std::string& name) {
  const auto found = settings_.find(name);
  if (found == settings_.end()) return nullptr;
  found->second.taken = true;
  const base::Json& value = found->second.value;
  const bool is_empty = value.is_null() || (value.AsString() != nullptr && value.AsString()->empty()) ||
                        (value.is_array() && value.items().empty());
  return is_empty ? nullptr : &value;
}

void ForeignConfig::NoteType(const std::string& name, const char* expected) {
  notes_.push_back(absl::StrCat(name, " is ", ShortText(settings_.find(name)->second.value),
                                "; not used, because it is not ", expected));
}

std::optional<std::string> ForeignConfig::Text(const std::string& name) {
  const base::Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) return ScalarText(*value);
  NoteType(name, "one value");
  return std::nullopt;
}

std::optional<double> ForeignConfig::Number(const std::string& name) {
  const base::Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> number = NumberIn(*value);
  if (!number.has_value()) NoteType(name, "a number");
  return number;
}

std::optional<int64_t> ForeignConfig::Integer(const std::string& name) {
  const std::optional<double> number = Number(name);
  if (!number.has_value()) return std::nullopt;
  if (*number == std::floor(*number) && std::abs(*number) < 1e15) return static_cast<int64_t>(*number);
  NoteType(name, "a whole number");
  return std::nullopt;
}

std::optional<bool> ForeignConfig::Flag(const std::string& name) {
  const base::Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  bool flag = false;
  if (value->AsBool().has_value()) return *value->AsBool();
  if (!value->is_array() && absl::SimpleAtob(ScalarText(*value), &flag)) return flag;
  NoteType(name, "true or false");
  return std::nullopt;
}

std::vector<std::string> ForeignConfig::Texts(const std::string& name) {
  std::vector<std::string> texts;
  const base::Json* const value = Find(name);
  if (value == nullptr) return texts;
  if (!value->is_array()) return {ScalarText(*value)};
  for (const base::Json& item : value->items()) texts.push_back(ScalarText(item));
  return texts;
}

std::vector<double> ForeignConfig::Numbers(const std::string& name) {
  std::vector<double> numbers;
  const base::Json* const value = Find(name);
  if (value == nullptr) return numbers;
  const base::Json one[] = {*value};
  for (const base::Json& item : value->is_array() ? value->items() : std::span<const base::Json>(one)) {
    const std::optional<double> number = NumberIn(item);
    if (!number.has_value()) {
      NoteType(name, "a list of numbers");
      return {};
    }
    numbers.push_back(*number);
  }
  return numbers;
}

void ForeignConfig::Take(const std::string& name) { Find(name); }

void ForeignConfig::Note(const std::string& name, const std::string& what) {
  const base::Json* const value = Find(name);
  if (value != nullptr && !IsOff(*value)) notes_.push_back(absl::StrCat(name, " is ", ShortText(*value), ": ", what));
}

std::vector<std::string> ForeignConfig::Finish() {
  std::vector<std::string> off;
  for (const std::string& name : order_) {
    Setting& setting = settings_.find(name)->second;
    if (std::exchange(setting.taken, true)) continue;
    if (IsOff(setting.value)) {
      off.push_back(base::ReplaceControlCharacters(name));
    } else {
      notes_.push_back(absl::StrCat(base::ReplaceControlCharacters(name), " is ", ShortText(setting.value),
                                    ": there is no equivalent"));
    }
  }
  if (!off.empty()) {
    notes_.push_back(absl::StrCat("off or empty, without an equivalent: ", absl::StrJoin(off, ", ")));
  }
  return std::move(notes_);
}

}  // namespace tessera::client
