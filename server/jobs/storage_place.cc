#include "server/jobs/storage_place.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace tessera::server {

void StoragePlace::Remember(const std::string& path) {
  // Closing an O_PATH descriptor of a file does not release the locks that SQLite holds.
  const int descriptor = open(path.c_str(), O_PATH | O_CLOEXEC);
  if (descriptor >= 0) known_.push_back({.path = path, .descriptor = descriptor});
}

StoragePlace::~StoragePlace() {
  for (const Known& known : known_) close(known.descriptor);
}

absl::Status StoragePlace::Check() const {
  for (const Known& known : known_) {
    struct stat opened = {}, named = {};
    const bool found = stat(known.path.c_str(), &named) == 0;
    if (found && fstat(known.descriptor, &opened) == 0 && opened.st_dev == named.st_dev &&
        opened.st_ino == named.st_ino) {
      continue;
    }
    return absl::UnavailableError(absl::StrCat(
        "\"", known.path, "\" ", found ? "was replaced since this server opened it" : "is missing",
        ": its folder was removed or moved, or another disk is mounted over it; restore it, or restart the server"));
  }
  return absl::OkStatus();
}

}  // namespace tessera::server
