// Follows what other servers do to the queue that they share with this one: their jobs are planned here too, what they
// run or have ended is not, and who watches here is notified.
//
// A task only ever moves on in the store: each claim and each giving back is one move more. What is heard of it is
// older or newer than what is known here by the number of its moves, so notices may come late, twice or not at all.
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
  // Observes the store from now on. All that is passed outlives it.
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
  // Another server has it, or had it: what a group here makes of it counts for nothing.
  void LoseHold(const Lock& lock, LiveTask& live, TaskId id);
  bool IsServed(const std::string& model) const;
  void NotifyWatchers(const Lock& lock, const JobRecord& job);

  const ServingContext context_;
  JobLifecycle& jobs_;
  JobOutcomes& outcomes_;
  std::map<TaskId, std::string> unserved_;  // their models; of the observer's calls, one at a time
};

}  // namespace tessera::server
