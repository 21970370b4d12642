// GroupBatch is the batch of one group at one step boundary: it decides which tasks join, which are suspended for a
// shorter task, and which take the next step. It is a view that lives for one decision.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "server/scheduling/group_capacity.h"
#include "server/scheduling/group_table.h"
#include "server/scheduling/key_shares.h"
#include "server/scheduling/scheduler_options.h"
#include "server/scheduling/step_plan.h"
#include "server/scheduling/task_choice.h"
#include "server/scheduling/task_table.h"

namespace tessera::server {

class GroupBatch final {
 public:
  GroupBatch(const SchedulerOptions& options, const GroupCapacity& capacity, TaskTable& tasks, ScheduledGroup& group)
      : options_(options), capacity_(capacity), tasks_(tasks), group_(group) {}

  // Resumes suspended tasks that fit again, then starts the waiting tasks that should start now.
  void Fill(const TaskChoice& choice, absl::Time now, StepPlan& plan);
  // Issues a step of all tasks that have started, or several steps if they are short.
  void IssueStep(KeyShares& keys, StepPlan& plan);
  // From now on the batch holds at most one task of this class at a time.
  void KeepApart(const ShapeClass& shape);

  std::vector<TaskId> InPhase(TaskPhase phase) const;
  std::vector<TaskId> Tasks() const;  // tasks in the batch: starting and active

 private:
  bool HasRoom(const ShapeClass& shape) const;
  void ResumeSuspended();
  bool MayBePreempted(const ScheduledTask& task, double seconds) const;
  bool SuspendedAllow(const ScheduledTask& task) const;
  bool Preempt(const ScheduledTask& task);
  void Start(ScheduledTask& task, StepPlan& plan);
  // Returns how many steps of these tasks to plan together; one step takes `flops` operations.
  int32_t StepsTogether(const std::vector<TaskId>& tasks, double flops) const;
  // Starts one more task; returns false if none can start now.
  bool StartOne(const TaskChoice& choice, absl::Time now, StepPlan& plan);

  const SchedulerOptions& options_;
  const GroupCapacity& capacity_;
  TaskTable& tasks_;
  ScheduledGroup& group_;
};

}  // namespace tessera::server
