// Finds the pipelines of the golden sets.
#pragma once

#include <filesystem>
#include <string>

namespace tessera {

// Returns the folder of a pipeline of any golden set; an absolute path is returned as it is.
inline std::string GoldenPipeline(const std::string& name) {
  if (name.starts_with('/')) return name;
  const std::string older = "tests/golden/pipelines/" + name;
  return std::filesystem::exists(older) ? older : "tests/golden-newer/pipelines/" + name;
}

}  // namespace tessera
