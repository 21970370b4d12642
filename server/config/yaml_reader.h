// One mapping of a YAML document, read key by key. The first error is kept; keys that nobody read are an error too.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tessera {

class YamlMapping {
 public:
  // `path` is what errors call it: "limits"; empty: the document.
  YamlMapping(const YAML::Node& node, std::string path);

  // Each leaves the value alone where the key is absent.
  void Read(const std::string& key, std::string& value);
  void Read(const std::string& key, bool& value);
  void Read(const std::string& key, std::vector<std::string>& value);
  void Read(const std::string& key, absl::Duration& value);  // above 0
  void ReadInteger(const std::string& key, int64_t low, int64_t high, int64_t& value);
  void ReadNumber(const std::string& key, double low, double high, double& value);
  void ReadName(const std::string& key, const std::vector<std::string>& valid, std::string& value);

  // The node of a key that holds a mapping or a list; undefined where it is absent.
  YAML::Node Take(const std::string& key);

  // Counts as an error about `key`.
  void Fail(const std::string& key, const std::string& rest);
  void Update(const absl::Status& status);

  // OK if there was no error and every key was read.
  absl::Status Finish();

 private:
  bool Scalar(const std::string& key, const char* valid, YAML::Node& node);
  std::string Name(const std::string& key) const;

  const YAML::Node node_;
  const std::string path_;
  std::vector<std::string> read_;
  absl::Status status_;
};

// " (line 7)"
std::string LineText(const YAML::Node& node);

}  // namespace tessera
