// Keeps a second process away from the same job store, for as long as the lock lives or its process does.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tessera {

class ProcessLock final {
 public:
  // FAILED_PRECONDITION where another process holds it. Makes the file `path`, which stays.
  static absl::StatusOr<ProcessLock> Take(const std::string& path);

  ProcessLock() = default;  // holds nothing
  ProcessLock(ProcessLock&& other) noexcept;
  ProcessLock& operator=(ProcessLock&& other) noexcept;
  ~ProcessLock();

 private:
  int file_ = -1;
};

}  // namespace tessera
