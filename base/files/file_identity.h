// Detects whether files have changed since they were read.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::base {

// Values that change when a file is written or replaced; all zero if there is no file.
struct FileIdentity {
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t changed_s = 0, changed_ns = 0;

  bool operator==(const FileIdentity&) const = default;
};

FileIdentity IdentityOf(const std::string& path);

// Returns 64 hexadecimal digits computed from the names and identities of all files in a folder and in its subfolders,
// at most two levels deep, except hidden ones, or of that one file. Equal for all folders that do not exist.
std::string FolderIdentity(const std::string& folder);

}  // namespace tessera::base
