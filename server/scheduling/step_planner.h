// StepPlanner plans each group's next commands and takes the reports of what the group did. Pure; one thread.
//
// The owner calls, for each group: Next whenever fewer than kMaxStepsInFlight plans have unanswered steps. It executes
// the plan in the order of its fields and reports with OnStarted, OnStepped (once for each step) and OnEnded.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/scheduling/group_batch.h"
#include "server/scheduling/group_capacity.h"
#include "server/scheduling/group_table.h"
#include "server/scheduling/key_shares.h"
#include "server/scheduling/scheduler_options.h"
#include "server/scheduling/step_plan.h"
#include "server/scheduling/task_choice.h"
#include "server/scheduling/task_table.h"

namespace tessera::server {

class StepPlanner final {
 public:
  StepPlanner(const SchedulerOptions& options, GroupTable& groups, const GroupCapacity& capacity, TaskTable& tasks,
              KeyShares& keys)
      : options_(options), groups_(groups), capacity_(capacity), tasks_(tasks), keys_(keys) {}

  // Returns an empty plan for a group that is not ready or has nothing to do, and a plan with at most `end` if
  // kMaxStepsInFlight plans of the group have unanswered steps.
  StepPlan Next(GroupId group, absl::Time now);

  // Report the answers to plans. `steps` is the number of steps that the worker will run, which replaces
  // SchedulerTask::steps; `seconds` is the duration of the step in the worker.
  void OnStarted(GroupId group, TaskId task, int32_t steps);
  void OnStepped(GroupId group, double seconds);
  // The task has left the worker: it was decoded, ended, or failed. Also called for a task that never started.
  void OnEnded(GroupId group, TaskId task);
  // Removes and returns the tasks that were in the group. The job store decides what becomes of them, and those that
  // run again are enqueued again.
  std::vector<TaskId> OnGroupDied(GroupId group);

  // While the group lives, tasks of this class share no batch with others in it; all but one of those in the current
  // batch leave it.
  void KeepApart(GroupId group, const ShapeClass& shape);
  // The group gets no more plans until it is ready again, because it is about to be ended with all its tasks.
  void Retire(GroupId group);
  // Returns whether the group's work is useless: it has tasks, and all of them are to end.
  bool IsAbandoned(GroupId group) const;

  // Marks running tasks whose deadline has passed to end with their group's next plan.
  void EndOverdue(absl::Time now);
  // Returns the running tasks that were marked to end since the last call because a plan or EndOverdue found their
  // deadline passed.
  std::vector<TaskId> TakeOverdue();

  absl::Status CheckInvariants() const;

 private:
  void EndOverdue(const ScheduledGroup& group, absl::Time now);

  const SchedulerOptions& options_;
  GroupTable& groups_;
  const GroupCapacity& capacity_;
  TaskTable& tasks_;
  KeyShares& keys_;
  std::vector<TaskId> overdue_;
};

}  // namespace tessera::server
