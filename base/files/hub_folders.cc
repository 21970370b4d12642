#include "base/files/hub_folders.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text/hub_name.h"

namespace tessera::base {

namespace fs = std::filesystem;

std::string PathInEnvironment(const char* name) {
  const char* value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  const char* home = std::getenv("HOME");
  if ((text == "~" || text.starts_with("~/")) && home != nullptr) text.replace(0, 1, home);
  return text;
}

std::string HubHomeFolder() {
  if (const std::string folder = PathInEnvironment("HF_HOME"); !folder.empty()) return folder;
  for (const auto& [variable, below] :
       {std::pair("XDG_CACHE_HOME", "huggingface"), std::pair("HOME", ".cache/huggingface")}) {
    if (const std::string folder = PathInEnvironment(variable); !folder.empty()) return fs::path(folder) / below;
  }
  return "";
}

std::string HubCacheFolder() {
  for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string cache = PathInEnvironment(variable); !cache.empty()) return cache;
  }
  const std::string home = HubHomeFolder();
  return home.empty() ? "" : home + "/hub";
}

std::string HubModelFolder(const std::string& cache, const std::string& name) {
  std::string folder = absl::StrCat(kHubFolderPrefix, name);
  return fs::path(cache) / folder.replace(folder.find('/'), 1, "--");
}

}  // namespace tessera::base
