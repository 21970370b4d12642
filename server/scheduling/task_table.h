// TaskTable holds the tasks that were enqueued and have not ended, and the queues of those that wait. Pure; one thread.
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

  void Add(const ScheduledTask& task);                  // waiting; its id must be new
  void Start(ScheduledTask& task, GroupId group);       // a waiting task, in the group from now on
  void Forget(ScheduledTask& task, bool lost = false);  // `lost`: together with its group

  // Remove and return waiting tasks: TakeExpired those whose deadline has passed, Take those whose shape passes.
  std::vector<TaskId> TakeExpired(absl::Time now);
  std::vector<SchedulerTask> Take(absl::FunctionRef<bool(const ShapeClass&)> passes);

  // A group empties itself for at most one waiting task and starts no other task until then.
  void Hold(ScheduledTask& task, GroupId group);
  void ReleaseHeld(GroupId group);

  const WaitingTasks& Waiting(const std::string& model) const;
  // Returns when the longest-waiting task was enqueued; absent if none waits.
  std::optional<absl::Time> OldestWaiting(const std::string& model) const;
  int64_t waiting() const { return waiting_tasks_; }

  // `running` is the number of tasks in the groups.
  absl::Status CheckInvariants(int64_t running) const;

 private:
  void RemoveWaiting(ScheduledTask& task);

  KeyShares& keys_;
  std::unordered_map<TaskId, ScheduledTask> tasks_;
  std::map<std::string, WaitingTasks> waiting_;        // by model
  std::set<std::pair<absl::Time, TaskId>> deadlines_;  // of waiting tasks
  // All waiting tasks, by model and by the time since which they wait.
  std::map<std::string, std::set<std::pair<absl::Time, TaskId>>> enqueued_;
  int64_t waiting_tasks_ = 0;
  std::map<GroupId, TaskId> held_;
};

}  // namespace tessera::server
