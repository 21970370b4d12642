// YamlMapping reads one mapping of a YAML document, key by key. The first error is kept; keys that were not read are
// also an error.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/fields/enum_names.h"

namespace tessera::base {

// The valid numbers for a key, including both ends.
struct YamlRange {
  double low, high;
};

class YamlMapping {
 public:
  // `path` is the mapping's name in errors, "limits"; empty for the document.
  YamlMapping(const YAML::Node& node, std::string path);

  // These leave `value` unchanged if the key is absent.
  void operator()(const std::string& key, std::string& value);
  void operator()(const std::string& key, bool& value);
  void operator()(const std::string& key, std::vector<std::string>& value);
  void operator()(const std::string& key, absl::Duration& value);  // above 0
  void operator()(const std::string& key, int64_t& value, YamlRange range);
  void operator()(const std::string& key, double& value, YamlRange range);
  void operator()(const std::string& key, std::vector<int64_t>& value, YamlRange range);  // one number is a list of one
  void operator()(const std::string& key, std::vector<double>& value, YamlRange range);
  void operator()(const std::string& key, std::string& value, const std::vector<std::string>& valid);
  template <NamedEnum Enum>
  void operator()(const std::string& key, Enum& value) {
    std::string name = EnumName(value);
    (*this)(key, name, EnumNames<Enum>());
    value = *EnumOf<Enum>(name);
  }

  // Reads a path. A leading "~/" stands for the user's home folder ($HOME), as in a shell.
  void Path(const std::string& key, std::string& value);

  // Calls visit(mapping) for the nested mapping of the key, then finishes it.
  template <typename Visit>
  void Nested(const std::string& key, const Visit& visit) {
    const YAML::Node node = Take(key);
    if (!node.IsDefined()) return;
    YamlMapping mapping(node, Name(key));
    visit(mapping);
    Update(mapping.Finish());
  }

  // Replaces `items` with one item per mapping in the key's list, filled by visit(mapping, item).
  template <typename Item, typename Visit>
  void Each(const std::string& key, std::vector<Item>& items, const Visit& visit) {
    const YAML::Node node = Take(key);
    if (!node.IsDefined() || node.IsNull()) return;
    if (!node.IsSequence()) return Fail(key, "is not a list of mappings");
    items.clear();
    for (size_t i = 0; i < node.size(); ++i) {
      YamlMapping mapping(node[i], Name(key) + "[" + std::to_string(i) + "]");
      visit(mapping, items.emplace_back());
      Update(mapping.Finish());
    }
  }

  // Returns the node of a key with a mapping or a list; undefined if it is absent.
  YAML::Node Take(const std::string& key);

  // Records an error about `key`.
  void Fail(const std::string& key, const std::string& rest);
  void Update(const absl::Status& status);

  // OK if there was no error and every key was read.
  absl::Status Finish();

 private:
  bool Scalar(const std::string& key, const char* valid, YAML::Node& node);
  void Number(const std::string& key, const YAML::Node& node, YamlRange range, int64_t& value);
  void Number(const std::string& key, const YAML::Node& node, YamlRange range, double& value);
  template <typename T>
  void Numbers(const std::string& key, std::vector<T>& value, YamlRange range);
  std::string Name(const std::string& key) const;

  const YAML::Node node_;
  const std::string path_;
  std::vector<std::string> read_;
  absl::Status status_;
};

// " (line 7)"
std::string LineText(const YAML::Node& node);

}  // namespace tessera::base
