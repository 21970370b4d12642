#include "server/jobs/storage_place.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"

namespace tessera {

void StoragePlace::Remember(const std::string& path) {
  struct stat about = {};
  if (stat(path.c_str(), &about) == 0) known_.push_back({.path = path, .device = about.st_dev, .inode = about.st_ino});
}

absl::Status StoragePlace::Check() const {
  for (const Known& known : known_) {
    struct stat about = {};
    const bool found = stat(known.path.c_str(), &about) == 0;
    if (found && about.st_dev == known.device && about.st_ino == known.inode) continue;
    return absl::UnavailableError(absl::StrCat(
        "\"", known.path, "\" ", found ? "is not the one that this server opened" : "is gone",
        ": its folder was removed or moved, or another disk lies over it; bring it back, or start the server again"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
