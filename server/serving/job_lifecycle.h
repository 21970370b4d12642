// The life of a task between its acceptance and its end: queued, claimed by a group, stepped, decoded, given back, and
// cancelled. Hands out to the groups what the scheduler plans, and hands what becomes of it to JobOutcomes.
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
#include "control/commands.h"
#include "server/serving/group_runner.h"
#include "server/serving/job_outcomes.h"
#include "server/serving/serving_context.h"

namespace tessera::server {

class JobLifecycle final : public GroupOwner {
 public:
  JobLifecycle(const ServingContext& context, JobOutcomes& outcomes) : context_(context), outcomes_(outcomes) {}

  // Takes over what the store has queued, before anything else.
  absl::Status Recover();
  // One that is known already only uses up the ticket.
  void Enqueue(const ServiceMonitor::Lock& lock, const QueuedTask& queued, uint64_t ticket);
  // Makes the task known without planning it; null where its model is not served.
  LiveTask* Add(const ServiceMonitor::Lock& lock, const QueuedTask& queued);
  // Whether another server runs it.
  void SetElsewhere(const ServiceMonitor::Lock& lock, TaskId task, bool elsewhere);
  absl::StatusOr<Job> Cancel(const std::string& tenant, const std::string& job);

  // The model can be read now: what was kept for it is enqueued.
  void EnqueueKept(const ServiceMonitor::Lock& lock, const std::string& model);
  // Digests of the adapters that jobs which have not ended were accepted with.
  std::set<std::string> NeededAdapters(const ServiceMonitor::Lock& lock) const;
  // What waits for models that are no longer served, and is to fail; of a shared queue nothing: it is forgotten here.
  std::vector<TaskId> TakeUnserved(const ServiceMonitor::Lock& lock, const std::vector<std::string>& models);

  // GroupOwner.
  void OnReady(GroupId group, const std::optional<control::MemoryBudget>& memory_budget) override;
  void OnDied(GroupId group, const absl::Status& reason, bool blameless) override;
  void OnRefused(GroupId group) override;
  StepPlan Next(GroupId group) override;
  void WaitForWork(GroupId group, absl::Duration timeout) override;
  absl::StatusOr<RunnableTask> Claim(GroupId group, TaskId task) override;
  void OnStarted(GroupId group, TaskId task, const control::JobStarted& started) override;
  void OnBatchDiffers(GroupId group, const std::vector<TaskId>& tasks) override;
  void OnStepped(GroupId group, const std::vector<TaskId>& tasks, double seconds) override;
  void OnPreview(GroupId group, TaskId task, const control::Image& image) override;
  void OnDecoded(GroupId group, TaskId task, control::Image image, const control::JobStarted& started,
                 double seconds) override;
  void OnFailed(GroupId group, TaskId task, const absl::Status& error) override;
  void OnBatchFailed(GroupId group, const std::vector<TaskId>& tasks, const absl::Status& error) override;
  void OnEnded(GroupId group, TaskId task) override;

 private:
  struct KeptTask {
    QueuedTask task;
    std::shared_ptr<const JobRequest> request;
  };

  // What ran is queued again in the store, or quarantined; what is to run again is marked.
  void GiveUp(const std::vector<TaskId>& tasks, const absl::Status& reason, bool blame);
  // The attempts of those tasks that the store is to judge.
  std::vector<TaskAttempt> TakeAttempts(const std::vector<TaskId>& tasks);
  void EnqueueAgain(const ServiceMonitor::Lock& lock, TaskId task);
  // The store has refused the claim.
  absl::Status OnNotClaimed(TaskId task, const absl::Status& reason);

  const ServingContext context_;
  JobOutcomes& outcomes_;
  // Guarded by the monitor.
  std::multimap<std::string, KeptTask> kept_tasks_;  // by model, until it can be read
  std::map<GroupId, uint64_t> planned_;              // the generation of each group's last plan
};

}  // namespace tessera::server
