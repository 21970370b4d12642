// Creates folders, and folders and files that only their owner may read, regardless of the umask: they contain prompts
// and pictures of all callers. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tessera::base {

// Creates the folder and missing ancestors with the mode that the umask leaves, and makes their names durable. An
// existing folder is unchanged. Returns RESOURCE_EXHAUSTED for a full disk, and UNAVAILABLE for other errors.
absl::Status MakeFolder(const std::string& path);

// MakeFolder with mode 0700.
absl::Status MakePrivateFolder(const std::string& path);

// Makes the names in the folder durable, if the file system supports it. Returns the errors of MakeFolder.
absl::Status SyncFolder(const std::string& path);

// Creates an empty file with mode 0600. An existing file is unchanged. Returns the errors of MakeFolder.
absl::Status MakePrivateFile(const std::string& path);

// The users who can read a server's data in this folder.
enum class Readers : uint8_t { kOwner, kGroup, kEveryone };
Readers ReadersOfDataFolder(const std::string& folder);

}  // namespace tessera::base
