#include "base/yaml/yaml_reader.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text/nearest_name.h"

namespace tessera::base {

std::string LineText(const YAML::Node& node) {
  return node.Mark().line < 0 ? "" : absl::StrCat(" (line ", node.Mark().line + 1, ")");
}

YamlMapping::YamlMapping(const YAML::Node& node, std::string path) : node_(node), path_(std::move(path)) {
  if (node_.IsMap() || node_.IsNull()) return;
  status_ = absl::InvalidArgumentError(absl::StrCat(path_.empty() ? "the configuration" : path_,
                                                    " is not a mapping of keys to values", LineText(node_)));
}

std::string YamlMapping::Name(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

void YamlMapping::Update(const absl::Status& status) { status_.Update(status); }

void YamlMapping::Fail(const std::string& key, const std::string& rest) {
  const bool there = node_.IsMap() && node_[key].IsDefined();
  Update(absl::InvalidArgumentError(absl::StrCat(Name(key), " ", rest, there ? LineText(node_[key]) : "")));
}

YAML::Node YamlMapping::Take(const std::string& key) {
  if (std::find(read_.begin(), read_.end(), key) == read_.end()) read_.push_back(key);
  // The node that yaml-cpp returns for an absent key throws at every use.
  if (!node_.IsMap() || !node_[key].IsDefined()) return YAML::Node(YAML::NodeType::Undefined);
  return node_[key];
}

bool YamlMapping::Scalar(const std::string& key, const char* valid, YAML::Node& node) {
  node.reset(Take(key));
  if (!node.IsDefined() || node.IsNull()) return false;
  if (node.IsScalar()) return true;
  Fail(key, absl::StrCat("is a ", node.IsMap() ? "mapping" : "list", "; it must be ", valid));
  return false;
}

void YamlMapping::operator()(const std::string& key, std::string& value) {
  YAML::Node node;
  if (!Scalar(key, "a text", node)) return;
  if (node.Scalar().find('\0') != std::string::npos) return Fail(key, "has a NUL character");
  value = node.Scalar();
}

void YamlMapping::Path(const std::string& key, std::string& value) {
  (*this)(key, value);
  if (!absl::StartsWith(value, "~")) return;
  const char* home = std::getenv("HOME");
  const bool is_own = value == "~" || absl::StartsWith(value, "~/");
  if (is_own && home != nullptr && *home != '\0') {
    value.replace(0, 1, home);
  } else {
    Fail(key, absl::StrCat(
                  "is ", QuotedValue(value), "; ",
                  is_own ? "HOME is not set, so it must be an absolute path"
                         : "it must be an absolute path, begin with ~/, or begin with ./ if its name begins with ~"));
  }
}

void YamlMapping::operator()(const std::string& key, bool& value) {
  YAML::Node node;
  if (!Scalar(key, "true or false", node)) return;
  if (node.Scalar() != "true" && node.Scalar() != "false") {
    return Fail(key, absl::StrCat("is ", QuotedValue(node.Scalar()), "; valid values are true and false"));
  }
  value = node.Scalar() == "true";
}

void YamlMapping::operator()(const std::string& key, std::vector<std::string>& value) {
  const YAML::Node node = Take(key);
  if (!node.IsDefined() || node.IsNull()) return;
  if (!node.IsSequence()) return Fail(key, "is not a list of texts");
  value.clear();
  for (const YAML::Node& item : node) {
    if (!item.IsScalar() || item.Scalar().empty()) return Fail(key, "has an entry that is not a text");
    value.push_back(item.Scalar());
  }
}

void YamlMapping::operator()(const std::string& key, absl::Duration& value) {
  YAML::Node node;
  if (!Scalar(key, "a duration such as 30s", node)) return;
  absl::Duration duration;
  if (!absl::ParseDuration(node.Scalar(), &duration) || duration <= absl::ZeroDuration() ||
      duration > absl::Hours(24 * 3660)) {
    return Fail(key, absl::StrCat("is ", QuotedValue(node.Scalar()),
                                  "; it must be a duration above 0 with its unit, such as 500ms, 30s, 5m or 24h"));
  }
  value = duration;
}

void YamlMapping::Number(const std::string& key, const YAML::Node& node, YamlRange range, int64_t& value) {
  const auto low = static_cast<int64_t>(range.low), high = static_cast<int64_t>(range.high);
  int64_t number = 0;
  if (!absl::SimpleAtoi(node.Scalar(), &number)) {
    return Fail(
        key, absl::StrCat("is ", QuotedValue(node.Scalar()), "; it must be a whole number from ", low, " to ", high));
  }
  if (number < low || number > high) {
    return Fail(key, absl::StrCat("is ", number, "; valid values are ", low, " to ", high, ", the nearest is ",
                                  std::clamp(number, low, high)));
  }
  value = number;
}

void YamlMapping::Number(const std::string& key, const YAML::Node& node, YamlRange range, double& value) {
  const auto [low, high] = range;
  double number = 0;
  if (!absl::SimpleAtod(node.Scalar(), &number) || std::isnan(number)) {
    return Fail(key, absl::StrCat("is ", QuotedValue(node.Scalar()), "; it must be a number from ", low, " to ", high));
  }
  if (number < low || number > high) {
    return Fail(key, absl::StrCat("is ", QuotedValue(node.Scalar()), "; it must be a number from ", low, " to ", high,
                                  ", the nearest is ", std::clamp(number, low, high)));
  }
  value = number;
}

void YamlMapping::operator()(const std::string& key, int64_t& value, YamlRange range) {
  YAML::Node node;
  if (Scalar(key, "a whole number", node)) Number(key, node, range, value);
}

void YamlMapping::operator()(const std::string& key, double& value, YamlRange range) {
  YAML::Node node;
  if (Scalar(key, "a number", node)) Number(key, node, range, value);
}

template <typename T>
void YamlMapping::Numbers(const std::string& key, std::vector<T>& value, YamlRange range) {
  const YAML::Node node = Take(key);
  if (!node.IsDefined() || node.IsNull()) return;
  if (node.IsMap()) return Fail(key, "is a mapping; it must be a number or a list of numbers");
  value.clear();
  if (node.IsScalar()) return Number(key, node, range, value.emplace_back());
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) return Fail(key, "has an entry that is not a number");
    Number(key, item, range, value.emplace_back());
  }
}

void YamlMapping::operator()(const std::string& key, std::vector<int64_t>& value, YamlRange range) {
  Numbers(key, value, range);
}

void YamlMapping::operator()(const std::string& key, std::vector<double>& value, YamlRange range) {
  Numbers(key, value, range);
}

void YamlMapping::operator()(const std::string& key, std::string& value, const std::vector<std::string>& valid) {
  YAML::Node node;
  if (!Scalar(key, "a text", node)) return;
  const std::string problem = ProblemOfName(node.Scalar(), valid);
  if (!problem.empty()) return Fail(key, problem.substr(1));
  value = node.Scalar();
}

absl::Status YamlMapping::Finish() {
  if (!status_.ok() || !node_.IsMap()) return status_;
  std::vector<std::string> seen;
  for (const auto& entry : node_) {
    const std::string where = path_.empty() ? "the configuration" : path_;
    if (!entry.first.IsScalar()) {
      return absl::InvalidArgumentError(absl::StrCat(where, " has a key that is not a text", LineText(entry.first)));
    }
    const std::string& key = entry.first.Scalar();
    if (std::find(read_.begin(), read_.end(), key) == read_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(path_.empty() ? "key" : absl::StrCat("key of ", path_),
                                                     ProblemOfName(key, read_), LineText(entry.first)));
    }
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      return absl::InvalidArgumentError(absl::StrCat(Name(key), " is given twice", LineText(entry.first)));
    }
    seen.push_back(key);
  }
  return absl::OkStatus();
}

}  // namespace tessera::base
