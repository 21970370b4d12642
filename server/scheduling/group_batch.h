// The tasks of one group at one step boundary: who joins the batch, who is suspended for a shorter one, who makes the
// step. A view, made for one decision.
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

  // Starts what shall start, after suspended tasks that fit again.
  void Fill(const TaskChoice& choice, absl::Time now, StepPlan& plan);
  // A step of all that have started, or several where these are short.
  void IssueStep(KeyShares& keys, StepPlan& plan);
  // From now on the batch holds one task of this class at a time.
  void KeepApart(const ShapeClass& shape);

  std::vector<TaskId> InPhase(TaskPhase phase) const;
  std::vector<TaskId> Tasks() const;  // of the batch: starting and active

 private:
  bool HasRoom(const ShapeClass& shape) const;
  void ResumeSuspended();
  bool MayBePreempted(const ScheduledTask& task, double seconds) const;
  bool SuspendedAllow(const ScheduledTask& task) const;
  bool Preempt(const ScheduledTask& task);
  void Start(ScheduledTask& task, StepPlan& plan);
  // How many steps of these tasks go together, of which one takes so many operations.
  int32_t StepsTogether(const std::vector<TaskId>& tasks, double flops) const;
  // Starts one more task; false where none can start now.
  bool StartOne(const TaskChoice& choice, absl::Time now, StepPlan& plan);

  const SchedulerOptions& options_;
  const GroupCapacity& capacity_;
  TaskTable& tasks_;
  ScheduledGroup& group_;
};

}  // namespace tessera::server
