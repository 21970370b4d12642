// RequestScheduler decides which tasks advance one timestep on which worker group. A task is one image of a job.
//
// Pure: no threads, clock, sockets or files; time is an argument and never goes back. The same calls give the same
// plans. Not thread-safe: its owner calls it under one lock. It holds only ids and numbers; the job store holds
// parameters, pictures and durable state.
//
// The rules:
//  - Between keys: fair shares. Every key is charged the operations that are planned for it, divided by its weight; the
//    least charged key with a task that fits goes next. A key that was idle gets no credit for it.
//  - Within a key: the earliest due time first. A task is due at its deadline minus its predicted duration; without a
//    deadline, it is due 60 s after it was enqueued. Each level of priority makes the due time 30 s earlier. Due times
//    are fixed and later tasks are due later, so no task starves.
//  - Tasks of one ShapeClass join and leave the batch of a group at step boundaries. A task of another class waits for
//    the batch to end, and the batch takes no more tasks once that task has waited `join_timeout`, unless it preempts:
//  - A task that is much shorter than the rest of the batch suspends the batch in the worker (its latents stay there)
//    and goes first. No task is preempted in total for longer than half of its length.
//  - A task that must run alone (Blame::isolated) goes before all others and gets a group without other tasks,
//    suspended ones included.
//  - A started task stays with its group until it ends, is cancelled, or the group dies.
//  - Large tasks (those that do not fit a group, or whose steps take longer there than `large_step`) go to large
//    groups. A group with fewer ranks takes one only if it would finish there sooner than after the large tasks that
//    wait, and the larger group takes large tasks before others.
//
// Each part has a class, which the owner reaches through its accessor; calls that concern several parts are here.
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

  // Set the values of the same meaning in GroupDescription.
  void SetMemory(GroupId group, double bytes, const std::string& limit = "");
  void SetFreeMemory(GroupId group, double bytes);

  // `ticket` 0: a recovered or requeued task, which no bound refuses. ALREADY_EXISTS for a known id.
  absl::Status Enqueue(const SchedulerTask& task, absl::Time now, uint64_t ticket = 0);

  // Removes a waiting task at once. A running task is in no later `step`, and in `end` of its group's next plan. An
  // unknown id is no error, because the task may just have ended. Returns true if the task was waiting.
  bool Cancel(TaskId task);

  // Removes and returns the waiting tasks whose deadline has passed. StepPlanner reports the running ones in `end` of
  // Next and in TakeOverdue.
  std::vector<TaskId> TakeExpired(absl::Time now) { return tasks_.TakeExpired(now); }
  // Removes and returns the waiting tasks that fit no group of their model now that its memory is known, with the
  // reasons.
  std::vector<std::pair<TaskId, absl::Status>> TakeTooLarge();
  // Removes and returns the waiting tasks of the model.
  std::vector<TaskId> TakeModel(const std::string& model);

  // Returns an error that names a broken invariant of the state, which a correct program never has. For tests.
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
  bool may_hold_too_large_ = false;  // whether a waiting task may be too large
};

}  // namespace tessera::server
