#include "base/file_identity.h"

#include <sys/stat.h>

namespace tessera::base {

FileIdentity IdentityOf(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return {};
  return {.device = found.st_dev,
          .inode = found.st_ino,
          .bytes = static_cast<uint64_t>(found.st_size),
          .changed_s = found.st_ctim.tv_sec,
          .changed_ns = found.st_ctim.tv_nsec};
}

}  // namespace tessera::base
