// Keeps a second process away from what is locked by a file, for as long as the lock lives or its process does.
//
// The kernel takes the lock back when the process ends, however it ends. On a network file system the file's server
// does so, so that processes on several hosts exclude each other, too, where the mount has locks (NFS does by default).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"

namespace tessera::base {

class ProcessLock final {
 public:
  // FailedPrecondition, which says what process on which host holds it, where another one does for longer than
  // `timeout`; one that is just ending does not. Unavailable where the file system cannot lock. Makes the file `path`,
  // which stays and which names its last holder.
  static absl::StatusOr<ProcessLock> Take(const std::string& path, absl::Duration timeout);

  // Whether a process holds it.
  static bool IsTaken(const std::string& path);

  ProcessLock() = default;  // holds nothing

 private:
  FileDescriptor file_;
};

}  // namespace tessera::base
