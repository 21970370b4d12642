// What each group does next, and what it reports of that. Pure; one thread.
//
// Calls of the owner, per group: Next whenever the steps of fewer than kMaxStepsInFlight plans are unanswered; carry
// out the plan in the order of its fields; report with OnStarted, OnStepped (once for each step) and OnEnded.
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

  // Empty for a group that is not ready or has nothing to do; no more than `end` for one that has the steps of
  // kMaxStepsInFlight plans unanswered.
  StepPlan Next(GroupId group, absl::Time now);

  // The answers to what plans said. `seconds`: that the step took in the worker.
  void OnStarted(GroupId group, TaskId task);
  void OnStepped(GroupId group, double seconds);
  // The task is no more in the worker: decoded, ended, or failed by itself. Also for one that never started.
  void OnEnded(GroupId group, TaskId task);
  // Forgets the tasks that were in it and returns them: what becomes of them is the job store's decision, and those
  // that run again are enqueued again.
  std::vector<TaskId> OnGroupDied(GroupId group);

  // From now on, as long as the group lives, tasks of this class are in no batch with others there: those that are now
  // leave it, but for one.
  void KeepApart(GroupId group, const ShapeClass& shape);
  // The group gets no more plans until it is ready again: it is about to be ended with all that is in it.
  void Retire(GroupId group);
  // Whether the group works for nobody: it has tasks, and all of them are to end.
  bool IsAbandoned(GroupId group) const;

  // Running tasks whose deadline has passed are to end with the next plan of their group.
  void EndOverdue(absl::Time now);
  // Running tasks that are to end because their deadline had passed at a plan or at EndOverdue, since the last call.
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
