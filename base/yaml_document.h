// A YAML text from outside as the tree of its one document. What it may hold is bounded before the tree is built, so a
// text of any bytes costs time and memory in proportion to its length at most.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

#include "absl/status/statusor.h"

namespace tessera::base {

struct YamlBounds {
  int depth = 32;     // of mappings and lists in one another
  int nodes = 20000;  // keys, values, mappings and lists
  int anchors = 256;
  int aliases = 1024;
};

// A null node for a text without a document. InvalidArgument, with the line, for what is no YAML, goes beyond the
// bounds, or has anything after the document's end.
absl::StatusOr<YAML::Node> ReadYamlDocument(const std::string& text, const YamlBounds& bounds = {});

}  // namespace tessera::base
