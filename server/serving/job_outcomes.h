// Brings into the store what became of tasks, and tells those who watch: done, failed, lost.
//
// A disk that takes nothing is tried again until it takes it or the process ends; the next process then finds the task
// as the store has it. Pictures are encoded and stored by a pool, so that groups go on meanwhile. Thread-safe; methods
// with a lock need it held, all others must not be called under it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/task_pool.h"
#include "control/commands.h"
#include "server/serving/serving_context.h"

namespace tessera::server {

// A picture that has left its worker.
struct FinishedTask {
  TaskAttempt attempt;
  LiveTask task;
  control::Image image;
  control::JobStarted started;
  ServingGroup group;
};

class JobOutcomes final {
 public:
  explicit JobOutcomes(const ServingContext& context);  // does what was posted when it ends

  // On the pool, while the task counts as unstored.
  void PostFinish(const ServiceMonitor::Lock& lock, FinishedTask finished);
  void PostFailure(const ServiceMonitor::Lock& lock, const TaskAttempt& attempt, const absl::Status& error);
  // On the pool.
  void PostFailWaiting(TaskId task, const absl::Status& error);
  void PostPreview(const LiveTask& task, int32_t number, const control::Image& image);
  // The tasks that the scheduler ended because their deadline had passed while they ran; those that are not claimed yet
  // are marked alone.
  void PostOverdue(const ServiceMonitor::Lock& lock);
  // One of those, now that it is claimed.
  void PostOverdue(const TaskAttempt& attempt);

  void FailWaiting(TaskId task, const absl::Status& error);

  // Does `write` until it succeeds or is refused; CANCELLED where the process ends first.
  absl::Status Persist(const std::vector<TaskId>& tasks, const std::function<absl::Status()>& write);
  // What became of the task cannot be kept, now or later: for this process it has failed.
  void Lose(TaskId task, const absl::Status& error);
  // The task has ended in the store: watchers are told, and the log where it failed.
  void ReportEnded(TaskId task, const std::string& outcome, const absl::Status& error = absl::OkStatus());
  // The service has no more to do with the task.
  void Forget(const ServiceMonitor::Lock& lock, TaskId task, const std::string& outcome);

  // What the pool still has to keep: `released` is whether the worker holds nothing of it any more.
  void AddUnstored(const ServiceMonitor::Lock& lock, TaskId task, bool released);
  bool IsUnstored(const ServiceMonitor::Lock& lock, TaskId task) const { return unstored_.contains(task); }
  void Release(const ServiceMonitor::Lock& lock, TaskId task);  // one that is not unstored is no error
  void RemoveUnstored(TaskId task);
  size_t unstored(const ServiceMonitor::Lock& lock) const { return unstored_.size(); }
  int64_t ReleasedOf(const ServiceMonitor::Lock& lock, const std::string& model) const;

  // The writes that Persist has begun and not ended, those that are tried again and again included.
  int64_t writes_under_way() const { return writes_under_way_; }

 private:
  void Finish(const FinishedTask& finished);
  void FailRunning(const TaskAttempt& attempt, const absl::Status& error);
  // The store did not take what became of the task; one that was cancelled is over with that.
  void ForgetIfCancelled(TaskId task);
  base::LogLine FailureLine(const ServiceMonitor::Lock& lock, const LiveTask& task, const std::string& outcome,
                            const absl::Status& error) const;

  const ServingContext context_;
  struct Unstored {
    std::string model;
    bool released = false;
  };
  std::map<TaskId, Unstored> unstored_;  // guarded by the monitor
  std::atomic<int64_t> writes_under_way_ = 0;
  base::TaskPool pool_;  // last: its tasks use the others
};

}  // namespace tessera::server
