// One worker group of a server and the thread that drives it: opens a session of workers (group_session.h), carries out
// the scheduler's plans in it (server/workers/step_loop.h), and opens another one when it has died.
//
// The runner knows no store, scheduler or watcher: its owner gives it work and hears what becomes of it. All calls of
// the owner are made on the runner's thread.
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
#include "base/log_line.h"
#include "server/api/image_service.h"
#include "server/serving/group_session.h"
#include "server/trace/group_trace.h"
#include "server/workers/step_loop.h"

namespace tessera::server {

class GroupOwner : public StepOwner {
 public:
  // `memory_budget`: of its rank with the least, absent as in Loaded.
  virtual void OnReady(GroupId group, const std::optional<control::MemoryBudget>& memory_budget) = 0;
  // The group has died with all that was in it. `blameless`: no job is the cause, because it was stopped for results
  // that could not be trusted, or was replaced.
  virtual void OnDied(GroupId group, const absl::Status& reason, bool blameless) = 0;
  // The group cannot start, and takes no tasks until it is ready. It goes on trying.
  virtual void OnRefused(GroupId group) = 0;
};

class GroupRunner final {
 public:
  // `owner` outlives the runner. `log` is told what operators should know.
  GroupRunner(const GroupRunnerOptions& options, GroupOwner& owner, base::EventLog log);
  ~GroupRunner();  // as Stop

  // Kills the workers and ends the thread. Thread-safe, as the next ones are.
  void Stop();

  GroupInfo Info() const;
  bool is_ready() const;
  // The one of the options, until the guard has stopped it: then one rank goes on.
  parallel::Layout layout() const { return session_.layout(); }
  // Loaded::contents of the model that it serves.
  std::string contents() const { return session_.contents(); }

  // Ends its workers with all that is in them, and starts new ones at once. Nothing is done to a group that is not
  // ready.
  void Replace(const std::string& reason);
  // One that could not start tries again at once instead of after its pause.
  void TryNow();
  // For how long it has been waiting for the answer to what it asked its workers last.
  absl::Duration SinceLastAnswer() const { return session_.SinceLastAnswer(); }
  // What replacing it takes, by its last start.
  absl::Duration ReloadTime() const { return session_.ReloadTime(); }

  // One real step of the smallest image, between the steps of the jobs. UNAVAILABLE where the group is not ready
  // or the step fails, DEADLINE_EXCEEDED where there is no answer in time.
  absl::Status Probe(absl::Duration timeout);

 private:
  using ProbeAnswer = std::shared_ptr<std::promise<absl::Status>>;
  // How a session went.
  struct Run {
    absl::Status status;
    bool was_ready = false;
    bool was_healthy = false;  // the next one may begin at once
  };

  void RunSessions();
  Run RunSession();
  // Between OnReady and OnDied.
  absl::Status Work(bool& has_made_images);
  absl::Status AnswerProbes(StepLoop& loop);
  std::vector<ProbeAnswer> TakeProbes();
  void SetState(GroupState state, const std::string& reason = "");
  // With mutex_ held. Workers may be dead before the thread notices: then it is restarting already.
  GroupState State() const;
  bool Stopping() const;

  const GroupRunnerOptions options_;
  GroupOwner& owner_;
  const base::EventLog log_;
  GroupTrace trace_;      // of the thread
  GroupSession session_;  // of the thread, but for what is thread-safe

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  GroupState state_ = GroupState::kStarting;
  std::string reason_;
  bool stopping_ = false;
  bool try_now_ = false;
  bool replaced_ = false;  // the workers were ended by Replace
  int64_t restarts_ = 0;
  std::vector<ProbeAnswer> probes_;

  std::thread thread_;
};

}  // namespace tessera::server
