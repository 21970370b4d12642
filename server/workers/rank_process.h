// RankProcess is the process of one rank: a child of this process (worker_process.h), or a process on another host
// (server/nodes/node_rank.h). Thread-safe, except Connect.
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

  // Returns a connected socket, which the caller owns. UNAVAILABLE if the worker ends first; DEADLINE_EXCEEDED.
  virtual absl::StatusOr<int> Connect(absl::Duration timeout) = 0;

  // Returns true if the worker ends within `timeout`.
  virtual bool WaitForExit(absl::Duration timeout) = 0;

  // "was killed by signal 9 (Killed)", "ended with exit code 3", "is running".
  virtual std::string StateText() = 0;

  // True while the process is stopped by a signal (SIGSTOP, for example).
  virtual bool IsStopped() const = 0;

  // The last lines that the worker wrote; complete once it has ended.
  virtual std::string LastOutput() = 0;

  // Peak resident memory; 0 if the system does not report it or the worker has ended.
  virtual uint64_t PeakMemoryBytes() const = 0;

  // Sends SIGKILL without waiting.
  virtual void Kill() = 0;

  // The process ID on this host; -1 if it runs on another one.
  virtual pid_t pid() const = 0;

  // The identity that another process needs to adopt this worker. FAILED_PRECONDITION if it cannot be adopted.
  virtual absl::StatusOr<WorkerIdentity> identity() const = 0;

  // The name of the host that runs it; empty for this host.
  virtual std::string node() const { return ""; }
  // The number of usable processors of that host; 0 for this host.
  virtual int processors() const { return 0; }
  // The path at which this rank can read a content (server/content/content_store.h) that is at `path` on this host; may
  // have to send the content to the rank's host first. UNAVAILABLE if the rank has ended; otherwise, errors of the
  // content's files or of that host's disk.
  virtual absl::StatusOr<std::string> BringContent(const std::string& digest, const std::string& path) {
    static_cast<void>(digest);
    return path;
  }
  // True if it ended because its host was lost, which must not count against any job.
  virtual bool host_lost() const { return false; }
};

}  // namespace tessera::server
