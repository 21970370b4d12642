// Runs this program again as a child process, and once more whenever a signal ends the child: a server that crashes is
// back at once, and finds its queue on the disk and its workers alive.
//
// The child runs in a process group of its own, so that a terminal's Ctrl-C reaches it through this process only. It
// cannot outlive this process: the kernel kills it then. What ends by itself, with whatever exit code, stays ended.
#pragma once

#include <sys/types.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log_line.h"

namespace tessera::server {

// How long to wait before a child is started that follows `crashes` ones in a row: at once after the first crash, then
// longer, never longer than workers wait for a server.
absl::Duration PauseBeforeRestart(int crashes);

struct SupervisorOptions {
  // What the child is to know, as it stands when it is started; of any length.
  std::function<std::string()> message;
  // A line of the child's standard output, without its end.
  std::function<void(const std::string& line)> said;
  base::EventLog log;
};

class Supervisor {
 public:
  explicit Supervisor(SupervisorOptions options) : options_(std::move(options)) {}

  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Until the child has ended for good: its exit code. INTERNAL where the first one crashed before it said anything, or
  // five in a row did. To be called on a thread that lives as long as the process.
  absl::StatusOr<int> Run();

  // From any thread: the child gets `signal`, and is not started again.
  void Stop(int signal);
  // From any thread: the child gets SIGHUP; where there is none, the next one. It arrives blocked, as a child is
  // started, and waits for whoever asks for it.
  void HangUp();

 private:
  absl::StatusOr<int> RunOnce();  // status of its end, as of waitpid

  const SupervisorOptions options_;
  bool spoke_ = false;  // the last child has said something

  std::mutex mutex_;
  // Guarded by mutex_.
  pid_t child_ = 0;  // 0: none
  int stop_ = 0;     // the signal; 0: none
  bool hang_up_ = false;
};

// In a child: what the supervisor wanted it to know; nothing in a process that has no supervisor. From here on it ends
// with its supervisor. UNAVAILABLE where that has ended already. To be called once, before there are other threads that
// read the environment.
absl::StatusOr<std::optional<std::string>> MessageOfSupervisor();

}  // namespace tessera::server
