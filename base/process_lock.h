// Keeps a second process away from the same job store, for as long as the lock lives or its process does.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"

namespace tessera::base {

class ProcessLock final {
 public:
  // FAILED_PRECONDITION where another process holds it for longer than `timeout`, which one that is just ending does
  // not. Makes the file `path`, which stays.
  static absl::StatusOr<ProcessLock> Take(const std::string& path, absl::Duration timeout);

  // Whether a process holds it.
  static bool IsTaken(const std::string& path);

  ProcessLock() = default;  // holds nothing

 private:
  FileDescriptor file_;
};

}  // namespace tessera::base
