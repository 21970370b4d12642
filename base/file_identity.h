// Whether a file is still the one that was read.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::base {

// What changes when a file is written or replaced; all zero where there is none.
struct FileIdentity {
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t changed_s = 0, changed_ns = 0;

  bool operator==(const FileIdentity&) const = default;
};

FileIdentity IdentityOf(const std::string& path);

}  // namespace tessera::base
