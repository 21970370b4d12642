// JobLifecycle runs a task from its acceptance to its end: queued, claimed by a group, stepped, decoded, given back,
// and cancelled. It passes the scheduler's plans to the groups, and their results to JobOutcomes.
//
// Thread-safe; methods with a lock need it held.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "control/protocol/job_replies.h"
#include "server/serving/group_owner.h"
#include "server/serving/job_outcomes.h"
#include "server/serving/serving_context.h"

namespace tessera::server {

class JobLifecycle final : public GroupOwner {
 public:
  JobLifecycle(const ServingContext& context, JobOutcomes& outcomes) : context_(context), outcomes_(outcomes) {}

  // Enqueues the tasks that the store has queued. Must be called first.
  absl::Status Recover();
  // Enqueues a task; a task that is already known only uses up the ticket.
  void Enqueue(const ServiceMonitor::Lock& lock, const QueuedTask& queued, uint64_t ticket);
  // Adds the task to the live tasks without scheduling it; returns null if its model is not served.
  LiveTask* Add(const ServiceMonitor::Lock& lock, const QueuedTask& queued);
  // Sets whether another server executes the task.
  void SetElsewhere(const ServiceMonitor::Lock& lock, TaskId task, bool elsewhere);
  absl::StatusOr<Job> Cancel(const std::string& tenant, const std::string& job);

  // Enqueues the tasks that were kept for a model until it could be read.
  void EnqueueKept(const ServiceMonitor::Lock& lock, const std::string& model);
  // Returns the digests of the contents that unfinished jobs name: each of these jobs holds a reference.
  std::set<std::string> NeededContents(const ServiceMonitor::Lock& lock) const;
  // Removes the waiting tasks of models that are no longer served and returns those that must fail. Tasks of a shared
  // queue are only forgotten here, so none of them is returned.
  std::vector<TaskId> TakeUnserved(const ServiceMonitor::Lock& lock, const std::vector<std::string>& models);

  // GroupOwner.
  void OnReady(GroupId group, const std::optional<control::MemoryBudget>& memory_budget) override;
  void OnDied(GroupId group, const absl::Status& reason, bool blameless) override;
  void OnRefused(GroupId group) override;
  StepPlan Next(GroupId group) override;
  void WaitForWork(GroupId group, absl::Duration timeout) override;
  absl::StatusOr<RunnableTask> Claim(GroupId group, TaskId task) override;
  std::vector<int32_t> OnStarted(GroupId group, TaskId task, const control::JobStarted& started) override;
  void OnBatchDiffers(GroupId group, const std::vector<TaskId>& tasks) override;
  void OnStepped(GroupId group, const std::vector<TaskId>& tasks, double seconds) override;
  void OnPreview(GroupId group, TaskId task, const control::Frames& image) override;
  void OnDecoded(GroupId group, TaskId task, control::Frames image, const control::JobStarted& started,
                 double seconds) override;
  void OnFailed(GroupId group, TaskId task, const absl::Status& error) override;
  void OnBatchFailed(GroupId group, const std::vector<TaskId>& tasks, const absl::Status& error) override;
  void OnEnded(GroupId group, TaskId task) override;

 private:
  struct KeptTask {
    QueuedTask task;
    std::shared_ptr<const JobRequest> request;
  };

  // Queues tasks that ran again in the store, or quarantines them, and marks those that are to run again.
  void GiveUp(const std::vector<TaskId>& tasks, const absl::Status& reason, bool blame);
  // Marks the tasks to run again and returns those attempts on which the store must decide.
  std::vector<TaskAttempt> TakeAttempts(const std::vector<TaskId>& tasks);
  void EnqueueAgain(const ServiceMonitor::Lock& lock, TaskId task);
  // Fills in where the workers find the contents of a task.
  absl::Status Locate(TaskId task, control::JobParameters& parameters);
  // Handles a claim that the store has refused.
  absl::Status OnNotClaimed(TaskId task, const absl::Status& reason);

  const ServingContext context_;
  JobOutcomes& outcomes_;
  // Guarded by the monitor.
  std::multimap<std::string, KeptTask> kept_tasks_;  // by model, until it can be read
  std::map<GroupId, uint64_t> planned_;              // generation at each group's last plan
};

}  // namespace tessera::server
