// Which process a worker is, so that another process can find it again and be sure that it is the same one: numbers of
// processes are used again, and what a file says of one may be old or wrong.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tessera::server {

// Field `number` of /proc/PID/stat, from 3 (the state) on as proc(5) numbers them. NOT_FOUND where there is no process.
absl::StatusOr<std::string> ProcessStat(pid_t pid, int number);

struct WorkerIdentity {
  pid_t pid = -1;
  uint64_t start_time = 0;  // as in /proc/PID/stat: clock ticks since the machine was started
  std::string socket;

  bool operator==(const WorkerIdentity&) const = default;
};

// The identity of a process that runs.
absl::StatusOr<WorkerIdentity> IdentityOf(pid_t pid, const std::string& socket);

// A process descriptor (pidfd) of that worker, which the caller owns. NOT_FOUND unless a process of this user with that
// number and start time runs `executable` and was told on its command line to listen on that socket.
absl::StatusOr<int> OpenWorker(const WorkerIdentity& identity, const std::string& executable);

// Whether OpenWorker would find it.
bool IsWorker(const WorkerIdentity& identity, const std::string& executable);

}  // namespace tessera::server
