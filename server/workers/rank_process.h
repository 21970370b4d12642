// The process of one rank as its group sees it: a child of this process (worker_process.h), or one that another host
// runs for it (server/nodes/node_rank.h). Thread-safe, but for Connect.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/workers/worker_identity.h"

namespace tessera::server {

class RankProcess {
 public:
  virtual ~RankProcess() = default;  // ends the worker if it still runs

  // A connected socket, which the caller owns. UNAVAILABLE when the worker ends first, DEADLINE_EXCEEDED.
  virtual absl::StatusOr<int> Connect(absl::Duration timeout) = 0;

  // True when the worker ends within this time.
  virtual bool WaitForExit(absl::Duration timeout) = 0;

  // "was killed by signal 9 (Killed)", "ended with exit code 3", "is running".
  virtual std::string StateText() = 0;

  // Whether a signal has stopped it, so that it runs no more until another one lets it go on.
  virtual bool IsStopped() const = 0;

  // The last lines that the worker wrote; all of them once it has ended.
  virtual std::string LastOutput() = 0;

  // The largest resident memory so far; 0 when the system does not say or the worker has ended.
  virtual uint64_t PeakMemoryBytes() const = 0;

  // SIGKILL, without waiting.
  virtual void Kill() = 0;

  // Of this host; -1: it runs on another one.
  virtual pid_t pid() const = 0;

  // For a process that will adopt it. FAILED_PRECONDITION where none can.
  virtual absl::StatusOr<WorkerIdentity> identity() const = 0;

  // The name of the host that runs it; empty: this one.
  virtual std::string node() const { return ""; }
  // That host's processors that may be used; 0: this one's.
  virtual int processors() const { return 0; }
  // Whether it has ended because that host is gone, which no job is to blame for.
  virtual bool host_lost() const { return false; }
};

}  // namespace tessera::server
