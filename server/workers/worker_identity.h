// WorkerIdentity identifies a worker process so that another process can find it again. A process ID is not enough:
// process IDs are reused, and a file that names one may be stale or wrong.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tessera::server {

// Returns field `number` of /proc/PID/stat, from 3 (the state) on, numbered as in proc(5). NOT_FOUND if there is no
// such process.
absl::StatusOr<std::string> ProcessStat(pid_t pid, int number);

struct WorkerIdentity {
  pid_t pid = -1;
  uint64_t start_time = 0;  // as in /proc/PID/stat: clock ticks since boot
  std::string socket;

  bool operator==(const WorkerIdentity&) const = default;
};

// Returns the identity of a running process.
absl::StatusOr<WorkerIdentity> IdentityOf(pid_t pid, const std::string& socket);

// Returns a process descriptor (pidfd) of that worker, which the caller owns. NOT_FOUND unless a process of this user
// with that process ID and start time runs `executable` with a command line that names that socket.
absl::StatusOr<int> OpenWorker(const WorkerIdentity& identity, const std::string& executable);

// Whether OpenWorker would succeed.
bool IsWorker(const WorkerIdentity& identity, const std::string& executable);

}  // namespace tessera::server
