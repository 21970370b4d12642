// Whether files are still those that were read.
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

// 64 hexadecimal digits of the names and identities of all files of a folder and of the folders in it, at most two
// deep, but for hidden ones. The same of every folder that is not there.
std::string FolderIdentity(const std::string& folder);

}  // namespace tessera::base
