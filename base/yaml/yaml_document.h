// Parses a YAML text from outside into the tree of its single document. Its contents are checked against bounds before
// the tree is built, so that any text takes time and memory at most in proportion to its length.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

#include "absl/status/statusor.h"

namespace tessera::base {

struct YamlBounds {
  int depth = 32;     // of nested mappings and lists
  int nodes = 20000;  // keys, values, mappings and lists
  int anchors = 256;
  int aliases = 1024;
};

// Returns a null node for a text without a document. Returns InvalidArgument, with the line, if the text is not YAML,
// exceeds the bounds, or has anything after the document's end.
absl::StatusOr<YAML::Node> ReadYamlDocument(const std::string& text, const YamlBounds& bounds = {});

}  // namespace tessera::base
