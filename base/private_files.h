// Folders, and folders and files that their owner alone may read, whatever the umask: prompts and pictures of all
// callers are kept in them. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tessera::base {

// Makes the folder, and those above it that are missing, with the mode that the umask leaves; their names are durable
// then. One that is there stays as it is. RESOURCE_EXHAUSTED for a full disk, UNAVAILABLE for whatever else.
absl::Status MakeFolder(const std::string& path);

// The same with mode 0700.
absl::Status MakePrivateFolder(const std::string& path);

// The names in the folder are durable then, where the file system can say so. Errors as above.
absl::Status SyncFolder(const std::string& path);

// Makes an empty file with mode 0600; one that is there stays as it is. Errors as above.
absl::Status MakePrivateFile(const std::string& path);

// Who besides its owner can read what a server keeps in this folder.
enum class Readers : uint8_t { kOwner, kGroup, kEveryone };
Readers ReadersOfDataFolder(const std::string& folder);

}  // namespace tessera::base
