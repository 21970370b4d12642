// SharedQueue follows what other servers do to the queue that they share with this one: it plans their jobs here too,
// skips what they execute or have ended, and notifies watchers here.
//
// A task's state only moves forward in the store: each claim and each return counts as one move. The number of moves
// shows whether a notice is older or newer than the state known here, so notices may arrive late, twice or not at all.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/jobs/job_store.h"
#include "server/serving/job_lifecycle.h"
#include "server/serving/job_outcomes.h"
#include "server/serving/serving_context.h"

namespace tessera::server {

class SharedQueue final : public QueueObserver {
 public:
  // Observes the store from now on. All arguments outlive the object.
  SharedQueue(const ServingContext& context, JobLifecycle& jobs, JobOutcomes& outcomes);
  ~SharedQueue() override;

  // QueueObserver.
  void OnChanged(const JobRecord& job) override;
  std::vector<uint64_t> Compare(absl::Span<const OpenTask> open) override;
  void OnGone(uint64_t task) override;

 private:
  using Lock = ServiceMonitor::Lock;

  void Follow(const Lock& lock, const JobRecord& job, const TaskRecord& task);
  void FollowEnd(const Lock& lock, LiveTask& live, const TaskRecord& task);
  void FollowQueued(const Lock& lock, LiveTask& live, TaskId id);
  void FollowRunning(const Lock& lock, LiveTask& live, TaskId id);
  // Another server has or had the task: the work of a group here on it is discarded.
  void LoseHold(const Lock& lock, LiveTask& live, TaskId id);
  bool IsServed(const std::string& model) const;
  void ForgetUnserved(const Lock& lock, TaskId id);
  void NotifyWatchers(const Lock& lock, const JobRecord& job);

  const ServingContext context_;
  JobLifecycle& jobs_;
  JobOutcomes& outcomes_;
  std::map<TaskId, std::string> unserved_;  // their models; used only by observer calls, which come one at a time
};

}  // namespace tessera::server
