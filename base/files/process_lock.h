// ProcessLock excludes other processes from a resource by a lock on a file, during the lifetime of the lock or of its
// process.
//
// The kernel releases the lock when the process ends, in whatever way. On a network file system the file's server does
// so, so that processes on several hosts also exclude each other if the mount supports locks (NFS does by default).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/files/file_descriptor.h"

namespace tessera::base {

class ProcessLock final {
 public:
  // Returns FailedPrecondition, with the process and the host that hold the lock, if another process holds it for
  // longer than `timeout`; a process that is ending releases it sooner. Returns Unavailable if the file system cannot
  // lock. Creates the file `path`, which is not removed and contains the name of its last holder.
  static absl::StatusOr<ProcessLock> Take(const std::string& path, absl::Duration timeout);

  // Returns whether a process holds the lock.
  static bool IsTaken(const std::string& path);

  ProcessLock() = default;  // holds nothing

 private:
  FileDescriptor file_;
};

}  // namespace tessera::base
