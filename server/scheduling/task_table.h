// The tasks that were enqueued and have not ended, and the queues of those that wait. Pure; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/scheduling/key_shares.h"
#include "server/scheduling/scheduled_task.h"
#include "server/scheduling/waiting_tasks.h"

namespace tessera::server {

class TaskTable final {
 public:
  explicit TaskTable(KeyShares& keys) : keys_(keys) {}

  ScheduledTask* Find(TaskId id);
  const ScheduledTask* Find(TaskId id) const { return const_cast<TaskTable*>(this)->Find(id); }

  void Add(const ScheduledTask& task);                  // it waits; of an id that is not known
  void Start(ScheduledTask& task, GroupId group);       // it waited, and is in the group from now on
  void Forget(ScheduledTask& task, bool lost = false);  // `lost`: with its group

  // Waiting tasks whose deadline has passed, or whose shape passes; forgotten now.
  std::vector<TaskId> TakeExpired(absl::Time now);
  std::vector<SchedulerTask> Take(absl::FunctionRef<bool(const ShapeClass&)> passes);

  // A group empties itself for at most one waiting task, for which it starts nothing else.
  void Hold(ScheduledTask& task, GroupId group);
  void ReleaseHeld(GroupId group);

  const WaitingTasks& Waiting(const std::string& model) const;
  // When the task that has waited longest was enqueued; absent where none waits.
  std::optional<absl::Time> OldestWaiting(const std::string& model) const;
  int64_t waiting() const { return waiting_tasks_; }

  // `running`: tasks that the groups have.
  absl::Status CheckInvariants(int64_t running) const;

 private:
  void RemoveWaiting(ScheduledTask& task);

  KeyShares& keys_;
  std::unordered_map<TaskId, ScheduledTask> tasks_;
  std::map<std::string, WaitingTasks> waiting_;        // by model
  std::set<std::pair<absl::Time, TaskId>> deadlines_;  // of waiting tasks
  // All waiting tasks, by model and the time since when they wait.
  std::map<std::string, std::set<std::pair<absl::Time, TaskId>>> enqueued_;
  int64_t waiting_tasks_ = 0;
  std::map<GroupId, TaskId> held_;
};

}  // namespace tessera::server
