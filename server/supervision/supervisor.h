// Supervisor runs this program again as a child process and restarts it whenever a signal ends it: a server that
// crashes is back at once, and finds its queue on the disk and its workers alive.
//
// The child runs in a separate process group, so that a terminal's Ctrl-C reaches it only through this process. If this
// process ends, the kernel kills the child. A child that exits, with any exit code, is not restarted.
#pragma once

#include <sys/types.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log/log_line.h"

namespace tessera::server {

// Returns the pause before a restart that follows `crashes` consecutive ones: none after the first crash, then longer,
// but never longer than workers wait for a server.
absl::Duration PauseBeforeRestart(int crashes);

struct SupervisorOptions {
  // Returns the message for the child, called at each start; it may have any length.
  std::function<std::string()> message;
  // Called with each line of the child's standard output, without its end.
  std::function<void(const std::string& line)> said;
  base::EventLog log;
};

class Supervisor {
 public:
  explicit Supervisor(SupervisorOptions options) : options_(std::move(options)) {}

  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Runs until the child has ended for good and returns its exit code. INTERNAL if the first child crashed before it
  // printed a line, or if five in a row did. Must be called on a thread that lives as long as the process.
  absl::StatusOr<int> Run();

  // Sends `signal` to the child, which is not restarted. May be called from any thread.
  void Stop(int signal);
  // Sends SIGHUP to the child, or to the next one if there is none. May be called from any thread. SIGHUP is blocked in
  // a new child and stays pending until the child handles it.
  void HangUp();

 private:
  absl::StatusOr<int> RunOnce();  // returns the child's status as of waitpid

  const SupervisorOptions options_;
  bool spoke_ = false;  // whether the last child has printed a line

  std::mutex mutex_;
  // Guarded by mutex_.
  pid_t child_ = 0;  // 0: none
  int stop_ = 0;     // the signal; 0: none
  bool hang_up_ = false;
};

// For a child: returns the supervisor's message, or nullopt in a process without a supervisor. From now on the process
// ends with its supervisor. UNAVAILABLE if that has already ended. Must be called once, before there are other threads
// that read the environment.
absl::StatusOr<std::optional<std::string>> MessageOfSupervisor();

}  // namespace tessera::server
