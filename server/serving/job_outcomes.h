// JobOutcomes stores the outcomes of tasks (done, failed, lost) and notifies watchers.
//
// A write that the disk refuses is retried until it succeeds or the process ends; the next process then finds the task
// in the state that the store has. A pool encodes and stores pictures, so that groups continue meanwhile. Thread-safe;
// methods with a lock need it held, and all others must not be called while holding it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/threads/task_pool.h"
#include "control/pictures/picture_frames.h"
#include "control/protocol/job_replies.h"
#include "server/serving/serving_context.h"

namespace tessera::server {

// A picture that has left its worker.
struct FinishedTask {
  TaskAttempt attempt;
  LiveTask task;
  control::Frames image;
  control::JobStarted started;
  ServingGroup group;
};

class JobOutcomes final {
 public:
  explicit JobOutcomes(const ServingContext& context);  // the destructor executes posted work

  // Execute on the pool; the task counts as unstored until then.
  void PostFinish(const ServiceMonitor::Lock& lock, FinishedTask finished);
  void PostFailure(const ServiceMonitor::Lock& lock, const TaskAttempt& attempt, const absl::Status& error);
  // Execute on the pool.
  void PostFailWaiting(TaskId task, const absl::Status& error);
  void PostPreview(const LiveTask& task, int32_t number, const control::Frames& image);
  // Fails the tasks that the scheduler ended because their deadline passed while they ran. Tasks that are not claimed
  // yet are only marked.
  void PostOverdue(const ServiceMonitor::Lock& lock);
  // Fails one of the marked tasks, now that it is claimed.
  void PostOverdue(const TaskAttempt& attempt);

  void FailWaiting(TaskId task, const absl::Status& error);

  // Repeats `write` until it succeeds or is refused; CANCELLED if the process ends first.
  absl::Status Persist(const std::vector<TaskId>& tasks, const std::function<absl::Status()>& write);
  // Records a failed task whose outcome cannot be stored, now or later; only this process knows of it.
  void Lose(TaskId task, const absl::Status& error);
  // Notifies watchers that the task has ended in the store, and logs a failure.
  void ReportEnded(TaskId task, const std::string& outcome, const absl::Status& error = absl::OkStatus());
  // Removes a task with which the service is finished.
  void Forget(const ServiceMonitor::Lock& lock, TaskId task, const std::string& outcome);

  // Adds a task that the pool has yet to store. `released`: the worker no longer holds anything of it.
  void AddUnstored(const ServiceMonitor::Lock& lock, TaskId task, bool released);
  bool IsUnstored(const ServiceMonitor::Lock& lock, TaskId task) const { return unstored_.contains(task); }
  void Release(const ServiceMonitor::Lock& lock, TaskId task);  // a task that is not unstored is no error
  void RemoveUnstored(TaskId task);
  size_t unstored(const ServiceMonitor::Lock& lock) const { return unstored_.size(); }
  int64_t ReleasedOf(const ServiceMonitor::Lock& lock, const std::string& model) const;

  // Returns the number of Persist calls that have not returned, including those that retry.
  int64_t writes_under_way() const { return writes_under_way_; }

 private:
  void Finish(const FinishedTask& finished);
  void FailRunning(const TaskAttempt& attempt, const absl::Status& error);
  // The store refused the outcome of the task; if the task was cancelled, it is finished.
  void ForgetIfCancelled(TaskId task);
  base::LogLine FailureLine(const ServiceMonitor::Lock& lock, const LiveTask& task, const std::string& outcome,
                            const absl::Status& error) const;
  // Returns what the task has used and has not been counted yet; the key is empty if that is nothing.
  KeyUsage UncountedOf(const ServiceMonitor::Lock& lock, const LiveTask& task) const;
  void PostUsage(const KeyUsage& usage);
  ImageFacts FactsOf(const ServiceMonitor::Lock& lock, const LiveTask& task) const;

  const ServingContext context_;
  struct Unstored {
    std::string model;
    bool released = false;
  };
  std::map<TaskId, Unstored> unstored_;  // guarded by the monitor
  std::atomic<int64_t> writes_under_way_ = 0;
  base::TaskPool pool_;  // last, because its tasks use the other members
};

}  // namespace tessera::server
