// Decides which tasks advance one timestep on which worker group. A task is one image of a job.
//
// Pure: no threads, clock, sockets or files; time is an argument and never goes back. The same calls give the same
// plans. Not thread-safe: its owner calls it under one lock. It holds ids and numbers only; parameters, pictures and
// the durable state are the job store's.
//
// The rules:
//  - Between keys: fair shares. Every key is charged the operations that are planned for it, divided by its weight; the
//    least charged key with a task that fits goes next. A key that was idle gets no credit for it.
//  - Within a key: the earliest due time. A task is due at its deadline, less what it is predicted to take; without
//    one, `due_after` after it was enqueued. Each level of priority makes that `priority_step` earlier. Due times are
//    fixed and later tasks are due later, so every task's turn comes: that is the ageing.
//  - Tasks of one ShapeClass join and leave the batch of a group at step boundaries. A task of another class waits for
//    the batch to end, and the batch takes no more tasks once it has waited `join_timeout` — or it preempts:
//  - A task that is much shorter than the rest of the batch suspends the batch in the worker (its latents stay there)
//    and goes first. No task is preempted for longer in all than `preempted_share` of its own length.
//  - A task that must run alone (Blame::isolated) gets a group without other tasks, suspended ones included, before all
//    others.
//  - A started task stays with its group until it ends, is cancelled, or the group dies.
//  - Large tasks (those that do not fit a group, or whose steps take longer there than `large_step`) go to large
//    groups: a group with fewer ranks takes one only where it would finish there sooner than after the large ones that
//    wait, and the larger group takes them before others.
//
// Each part has its own class, which the owner calls by its accessor; what concerns several is here.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/scheduling/admission_control.h"
#include "server/scheduling/group_capacity.h"
#include "server/scheduling/group_table.h"
#include "server/scheduling/key_shares.h"
#include "server/scheduling/scheduled_task.h"
#include "server/scheduling/scheduler_options.h"
#include "server/scheduling/step_planner.h"
#include "server/scheduling/task_table.h"

namespace tessera::server {

class RequestScheduler final {
 public:
  explicit RequestScheduler(const SchedulerOptions& options) : options_(options) {}
  RequestScheduler(const RequestScheduler&) = delete;

  KeyShares& keys() { return keys_; }
  GroupTable& groups() { return groups_; }
  GroupCapacity& capacity() { return capacity_; }
  AdmissionControl& admission() { return admission_; }
  StepPlanner& steps() { return steps_; }
  const TaskTable& tasks() const { return tasks_; }

  // As in GroupDescription.
  void SetMemory(GroupId group, double bytes, const std::string& limit = "");
  void SetFreeMemory(GroupId group, double bytes);

  // `ticket` 0: a recovered or given-back task, which no bound refuses. ALREADY_EXISTS for a known id.
  absl::Status Enqueue(const SchedulerTask& task, absl::Time now, uint64_t ticket = 0);

  // A waiting task is forgotten at once; one that runs is in no later `step` and in `end` of the group's next plan. An
  // unknown one is no error: it may just have ended. True when it was waiting.
  bool Cancel(TaskId task);

  // Waiting tasks whose deadline has passed, forgotten now. Running ones come with `end` of StepPlanner::Next and
  // TakeOverdue.
  std::vector<TaskId> TakeExpired(absl::Time now) { return tasks_.TakeExpired(now); }
  // Waiting tasks that fit no group of their model since its memory is known, with the reason, forgotten now.
  std::vector<std::pair<TaskId, absl::Status>> TakeTooLarge();
  // Waiting tasks of the model, forgotten now.
  std::vector<TaskId> TakeModel(const std::string& model);

  // What any invariant of the state is broken; OK in a correct program. For tests.
  absl::Status CheckInvariants() const;

 private:
  const SchedulerOptions options_;
  KeyShares keys_;
  GroupTable groups_{options_};
  TaskTable tasks_{keys_};
  GroupCapacity capacity_{options_, groups_};
  AdmissionControl admission_{options_, groups_, capacity_, tasks_, keys_};
  StepPlanner steps_{options_, groups_, capacity_, tasks_, keys_};
  uint64_t next_sequence_ = 1;
  bool may_hold_too_large_ = false;  // among the waiting tasks
};

}  // namespace tessera::server
