#include "base/files/user_folders.h"

#include <cstdlib>

namespace tessera::base {

std::string UserDataFolder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::string data = variable("XDG_DATA_HOME");
  if (data.empty()) data = variable("HOME") + "/.local/share";
  return data + "/tessera";
}

}  // namespace tessera::base
