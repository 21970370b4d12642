// TaskChoice picks the waiting task that a group takes next: by the shares of the keys, then by due time. Pure.
#pragma once

#include <optional>

#include "absl/functional/function_ref.h"
#include "server/scheduling/group_capacity.h"
#include "server/scheduling/group_table.h"
#include "server/scheduling/key_shares.h"
#include "server/scheduling/task_table.h"

namespace tessera::server {

class TaskChoice final {
 public:
  TaskChoice(const GroupTable& groups, const GroupCapacity& capacity, const TaskTable& tasks, const KeyShares& keys)
      : groups_(groups), capacity_(capacity), tasks_(tasks), keys_(keys) {}

  // Picks tasks that must run alone first, then those that are large for smaller groups, then all others.
  std::optional<TaskId> Pick(const ScheduledGroup& group) const;
  // Picks among the tasks of this class that may share a batch.
  std::optional<TaskId> PickOf(const ScheduledGroup& group, const ShapeClass& shape) const;

 private:
  std::optional<TaskId> PickAmong(const ScheduledGroup& group,
                                  absl::FunctionRef<bool(const WaitingClass&)> class_passes) const;
  // Returns whether no group with more ranks would finish a large task sooner.
  bool Suits(const ScheduledGroup& group, const ScheduledTask& task) const;

  const GroupTable& groups_;
  const GroupCapacity& capacity_;
  const TaskTable& tasks_;
  const KeyShares& keys_;
};

}  // namespace tessera::server
