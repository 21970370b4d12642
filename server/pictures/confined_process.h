// ConfinedProcess is one tessera-picture-decoder and the socket to it. Its destructor kills and reaps the process.
// Not thread-safe. Reads and writes wait until the deadline of the call.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/files/file_descriptor.h"

namespace tessera::server {

class ConfinedProcess {
 public:
  // Starts `command`, an absolute path and arguments, with an empty environment, the socket as descriptors 0 and 1, and
  // no other descriptor but /dev/null as 2. UNAVAILABLE if the system does not allow that.
  static absl::StatusOr<ConfinedProcess> Start(const std::vector<std::string>& command);

  ConfinedProcess(ConfinedProcess&& other) noexcept;
  ConfinedProcess& operator=(ConfinedProcess&&) = delete;
  ~ConfinedProcess();

  // DEADLINE_EXCEEDED at `deadline` (base::SteadyNow). ABORTED if the process closed the socket before.
  absl::Status Send(const void* from, size_t size, absl::Duration deadline);
  absl::Status Receive(void* to, size_t size, absl::Duration deadline);

  // Returns whether the process has closed the socket without another byte and exited with code 0.
  absl::StatusOr<bool> EndsWell(absl::Duration deadline);

  // Checks in /proc that the kernel applies a system call filter to the process and gives it no new privileges.
  // FAILED_PRECONDITION if it does not or if that cannot be read.
  absl::Status CheckConfined() const;

  // Kills and reaps the process and returns the signal that ended it, or 0.
  int End();

 private:
  ConfinedProcess(pid_t pid, base::FileDescriptor socket) : pid_(pid), socket_(std::move(socket)) {}

  absl::Status Wait(short events, absl::Duration deadline);

  pid_t pid_;  // 0: reaped
  base::FileDescriptor socket_;
};

}  // namespace tessera::server
