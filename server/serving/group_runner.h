// GroupRunner drives one worker group of a server on a thread: it opens a session of workers (group_session.h),
// executes the scheduler's plans in it (server/workers/step_loop.h), and opens a new session when the group has died.
//
// The runner does not know the store, the scheduler or watchers: its owner supplies the work and gets its results. All
// calls of the owner are made on the runner's thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/log/log_line.h"
#include "server/api/server_info.h"
#include "server/serving/group_owner.h"
#include "server/serving/group_session.h"
#include "server/trace/group_trace.h"
#include "server/workers/step_loop.h"

namespace tessera::server {

class GroupRunner final {
 public:
  // `owner` outlives the runner. `log` gets messages for operators.
  GroupRunner(const GroupRunnerOptions& options, GroupOwner& owner, base::EventLog log);
  ~GroupRunner();  // calls Stop

  // Kills the workers and ends the thread. Thread-safe, like the methods below.
  void Stop();

  GroupInfo Info() const;
  GroupProgress Progress() const;
  // Returns the layout of the options; after the guard has stopped that layout, the layout of one rank.
  parallel::Layout layout() const { return session_.layout(); }
  // Returns Loaded::contents of the served model.
  std::string contents() const { return session_.contents(); }
  // Returns LayoutCertification::products_drift of the served layout.
  std::optional<double> products_drift() const { return session_.certification().products_drift; }

  // Ends the group's workers with all their tasks and starts new ones at once. Does nothing if the group is not ready.
  void Replace(const std::string& reason);
  // Makes a group that could not start retry at once instead of after its pause.
  void TryNow();
  // Returns how long the group has been waiting for the answer to its last command to the workers.
  absl::Duration SinceLastAnswer() const { return session_.SinceLastAnswer(); }
  // Returns the time that a replacement takes, measured at the last start.
  absl::Duration ReloadTime() const { return session_.ReloadTime(); }

  // Makes one real step of the smallest image, between the steps of jobs. UNAVAILABLE: the group is not ready or the
  // step fails. DEADLINE_EXCEEDED: no answer in time.
  absl::Status Probe(absl::Duration timeout);

 private:
  using ProbeAnswer = std::shared_ptr<std::promise<absl::Status>>;
  // The outcome of a session.
  struct Run {
    absl::Status status;
    bool was_ready = false;
    bool was_healthy = false;  // the next session may start at once
  };

  void RunSessions();
  Run RunSession();
  // Serves from OnReady until OnDied.
  absl::Status Work(bool& has_made_images);
  absl::Status AnswerProbes(StepLoop& loop);
  std::vector<ProbeAnswer> TakeProbes();
  void SetState(GroupState state, const std::string& reason = "");
  // Both require mutex_.
  GroupProgress ProgressNow() const;
  // Returns kRestarting if the workers are dead, even before the thread notices it.
  GroupState State() const;
  bool Stopping() const;

  const GroupRunnerOptions options_;
  GroupOwner& owner_;
  const base::EventLog log_;
  GroupTrace trace_;      // used by the thread
  GroupSession session_;  // used by the thread, except for its thread-safe methods

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  GroupState state_ = GroupState::kStarting;
  std::string reason_;
  bool stopping_ = false;
  bool try_now_ = false;
  bool replaced_ = false;  // Replace ended the workers
  int64_t restarts_ = 0;
  std::vector<ProbeAnswer> probes_;

  std::thread thread_;
};

}  // namespace tessera::server
