// Finds the pipelines of the golden sets.
#pragma once

#include <filesystem>
#include <string>

namespace tessera {

// Returns the folder of a pipeline of any golden set; an absolute path is returned as it is.
inline std::string GoldenPipeline(const std::string& name) {
  if (name.starts_with('/')) return name;
  for (const char* const set : {"tests/golden", "tests/golden-newer"}) {
    const std::string folder = std::string(set) + "/pipelines/" + name;
    if (std::filesystem::exists(folder)) return folder;
  }
  return "tests/golden-edit/pipelines/" + name;
}

}  // namespace tessera
