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
//  one,
//    `patience` after it was enqueued. Each level of priority makes that `priority_step` earlier. Due times are fixed
//    and later tasks are due later, so every task's turn comes: that is the ageing.
//  - Tasks of one ShapeClass join and leave the batch of a group at step boundaries. A task of another class waits for
//    the batch to end, and the batch takes no more tasks once it has waited `join_patience` — or it overtakes:
//  - A task that is much shorter than the rest of the batch parks the batch in the worker (its latents stay there) and
//    goes first. No task is overtaken for longer in all than `overtaken_share` of its own length.
//  - A task that must run alone (Blame::alone) gets a group without other tasks, parked ones included, before all
//  others.
//  - A started task stays with its group until it ends, is cancelled, or the group dies.
//  - Large tasks (those that do not fit a group, or whose steps take longer there than `large_step`) go to large
//  groups:
//    a group with fewer ranks takes one only where it would finish there sooner than behind the large ones that wait,
//    and the larger group takes them before others.
//
// Calls of the owner, per group: Next whenever fewer than kMaxStepsInFlight steps are unanswered; carry out the plan in
// the order of its fields; report with OnStarted, OnStepped and OnEnded.
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
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/scheduling/cost_model.h"
#include "server/scheduling/scheduled_task.h"
#include "server/scheduling/step_plan.h"

namespace tessera {

struct SchedulerOptions {
  absl::Duration patience = absl::Seconds(60);
  absl::Duration priority_step = absl::Seconds(30);
  absl::Duration join_patience = absl::Seconds(2);
  double overtaking_ratio = 4;  // an overtaking task is at least this much shorter than the rest of the batch
  double overtaken_share = 0.5;
  absl::Duration large_step = absl::Seconds(1);  // a task is large for a group on which its steps take longer
  int32_t max_resident = 16;                     // tasks in one worker group, parked ones included
  double initial_flops_per_second = 1e11;        // of one rank, until a group was seen to step

  // Bounds of admission, over what waits and runs; 0: none.
  int64_t max_waiting = 100'000;                         // tasks
  absl::Duration max_expected_wait = absl::Minutes(10);  // of a new task
};

// The bounds of one key, beside those of the scheduler; 0: none.
struct KeyBounds {
  int64_t max_waiting = 0;        // tasks that have not ended
  double max_device_seconds = 0;  // predicted, of the same tasks
};

// A promise that `tasks` more tasks may be enqueued. Counts against all bounds until it is used up or released.
struct Admission {
  // RESOURCE_EXHAUSTED: over a bound; FAILED_PRECONDITION: no group of the model; INVALID_ARGUMENT: too large for all.
  absl::Status status;
  absl::Duration expected_wait;  // until a task admitted now would start; of a refused one: until it could be admitted
  uint64_t ticket = 0;           // of an admitted one
  bool key_is_full = false;      // refused for the bounds of its key, which other keys do not meet
};

class RequestScheduler final {
 public:
  explicit RequestScheduler(const SchedulerOptions& options) : options_(options) {}

  // Before groups of the model. Its cost may change while tasks of it wait.
  void SetModel(const std::string& model, const ModelCost& cost);
  // Each > 0; keys that are not named have 1. What was charged to a key before stays as it was.
  void SetWeights(const std::map<std::string, double>& weights);

  // Of admission, as in SchedulerOptions.
  void SetBounds(int64_t max_waiting, absl::Duration max_expected_wait);

  // Groups that the configuration promises but that are not up yet: admission counts on them.
  void AddGroup(const GroupDescription& group);
  void RemoveGroup(GroupId group);    // not ready
  bool IsEmpty(GroupId group) const;  // no task is in its workers; one that is not known has none
  // As in GroupDescription.
  void SetMemory(GroupId group, double bytes);
  void SetFreeMemory(GroupId group, double bytes);

  // FAILED_PRECONDITION or INVALID_ARGUMENT where no group could ever run it, as Admit says it.
  absl::Status CheckFits(const ShapeClass& shape) const;

  // What so many such images take a group at the least, one after another: by the fastest group of the model that has
  // room for them, and by LearnedSpeed::LeastSecondsPerFlop. Zero where no group has.
  absl::Duration LeastJobTime(const ShapeClass& shape, int32_t steps, int32_t tasks) const;

  // Decides at once, changes nothing but the ticket. Messages are fit for callers.
  Admission Admit(const std::string& key, const ShapeClass& shape, int32_t steps, int32_t tasks,
                  const KeyBounds& bounds);
  void Release(uint64_t ticket);

  // `ticket` 0: a recovered or given-back task, which no bound refuses. ALREADY_EXISTS for a known id.
  absl::Status Enqueue(const SchedulerTask& task, absl::Time now, uint64_t ticket = 0);

  // A waiting task is forgotten at once; one that runs is in no later `step` and in `end` of the group's next plan. An
  // unknown one is no error: it may just have ended. True when it was waiting.
  bool Cancel(TaskId task);

  // Waiting tasks whose deadline has passed, forgotten now. Running ones come with `end` of Next and TakeOverdue.
  std::vector<TaskId> TakeExpired(absl::Time now);
  // Waiting tasks that fit no group of their model since its memory is known, with the reason, forgotten now.
  std::vector<std::pair<TaskId, absl::Status>> TakeTooLarge();
  // Waiting tasks of the model, forgotten now.
  std::vector<TaskId> TakeModel(const std::string& model);
  // Running tasks that are to end because their deadline had passed at a plan or at EndOverdue, since the last call.
  std::vector<TaskId> TakeOverdue();

  // Running tasks whose deadline has passed are to end with the next plan of their group.
  void EndOverdue(absl::Time now);
  // Whether the group works for nobody: it has tasks, and all of them are to end.
  bool IsAbandoned(GroupId group) const;
  // What its unanswered steps take together, at the least; zero where it has none.
  absl::Duration LeastTimeInFlight(GroupId group) const;
  // It gets no more plans until it is ready again: it is about to be ended with all that is in it.
  void Retire(GroupId group);

  // Empty for a group that is not ready or has nothing to do; no more than `end` for one that has kMaxStepsInFlight
  // steps unanswered.
  StepPlan Next(GroupId group, absl::Time now);

  // The answers to what plans said. `seconds`: that the step took in the worker.
  void OnStarted(GroupId group, TaskId task);
  void OnStepped(GroupId group, double seconds);
  // The task is no more in the worker: decoded, ended, or failed by itself. Also for one that never started.
  void OnEnded(GroupId group, TaskId task, absl::Time now);

  // From now on, as long as the group lives, tasks of this class are in no batch with others there: those that are now
  // leave it, but for one.
  void KeepApart(GroupId group, const ShapeClass& shape);

  void OnGroupReady(GroupId group, absl::Time now);
  // Forgets the tasks that were in it and returns them: what becomes of them is the job store's decision, and those
  // that run again are enqueued again.
  std::vector<TaskId> OnGroupDied(GroupId group);
  // From now on the group starts nothing new; it finishes what it has.
  void Drain(GroupId group);

  // 0: next. Absent for a task that does not wait.
  std::optional<int64_t> QueuePosition(TaskId task) const;
  // Until it starts; absent for a task that does not wait, infinite while no group of its model is ready.
  std::optional<absl::Duration> ExpectedWait(TaskId task) const;

  // When the task that has waited longest was enqueued; absent where none waits.
  std::optional<absl::Time> OldestWaiting() const;

  int64_t waiting() const;
  int64_t resident() const;
  double queued_device_seconds() const;           // predicted, of all tasks that wait or run
  std::map<std::string, double> Charged() const;  // operations charged to each key so far

  // What any invariant of the state is broken; OK in a correct program. For tests.
  absl::Status CheckInvariants() const;

 private:
  ScheduledTask* Find(TaskId id) {
    const auto task = tasks_.find(id);
    return task == tasks_.end() ? nullptr : &task->second;
  }
  const ScheduledTask* Find(TaskId id) const { return const_cast<RequestScheduler*>(this)->Find(id); }
  ScheduledGroup* FindGroup(GroupId id) {
    const auto group = groups_.find(id);
    return group == groups_.end() ? nullptr : &group->second;
  }
  const ScheduledGroup* FindGroup(GroupId id) const { return const_cast<RequestScheduler*>(this)->FindGroup(id); }
  KeyState& KeyOf(const std::string& key) { return keys_[key]; }
  const ModelCost& CostOfModel(const std::string& model) const;

  // request_scheduler.cc
  void AddWaiting(ScheduledTask& task);
  void RemoveWaiting(ScheduledTask& task);
  void ReleaseHeld(ScheduledGroup& group);  // of the waiting task that it holds
  void Forget(TaskId id);                   // a task that is not waiting any more

  // admission.cc
  double Throughput(const std::string& model) const;  // operations a second; 0: no group
  double UnfinishedFlops(const std::string& model) const;
  absl::Duration WaitBehind(const std::string& model, double flops) const;
  bool CouldEverRun(const ShapeClass& shape) const;

  // step_plan.cc
  bool Fits(const ScheduledGroup& group, const ShapeClass& shape, int32_t tasks) const;
  bool IsLargeFor(const ScheduledGroup& group, const ShapeClass& shape) const;
  bool IsLargeForSmaller(const ScheduledGroup& group, const ShapeClass& shape) const;
  bool Suits(const ScheduledGroup& group, const ScheduledTask& task) const;
  double Seconds(const ScheduledGroup& group, const ScheduledTask& task) const;
  static double LeastSeconds(const ScheduledGroup& group, const ShapeClass& shape, double flops);
  std::optional<TaskId> Pick(const ScheduledGroup& group, const ShapeClass* only) const;
  std::optional<TaskId> PickAmong(const ScheduledGroup& group,
                                  absl::FunctionRef<bool(const WaitingClass&)> class_passes) const;
  std::vector<TaskId> InPhase(const ScheduledGroup& group, TaskPhase phase) const;
  std::vector<TaskId> Batch(const ScheduledGroup& group) const;  // starting and active
  void EndOverdue(const ScheduledGroup& group, absl::Time now);
  void EndLeaving(ScheduledGroup& group, absl::Time now, StepPlan& plan);
  void ResumeParked(ScheduledGroup& group);
  bool MayBeOvertaken(const ScheduledGroup& group, const ScheduledTask& task, double seconds) const;
  bool ParkedAllow(const ScheduledGroup& group, const ScheduledTask& task) const;
  bool Overtake(ScheduledGroup& group, const ScheduledTask& task);
  bool HasRoom(const ScheduledGroup& group, const ShapeClass& shape) const;
  bool MayJoinInstead(const ScheduledTask& head, absl::Time now) const;
  void Start(ScheduledGroup& group, TaskId id, StepPlan& plan);
  void FillBatch(ScheduledGroup& group, absl::Time now, StepPlan& plan);
  void IssueStep(ScheduledGroup& group, StepPlan& plan);

  SchedulerOptions options_;
  std::map<std::string, ModelCost> models_;
  std::map<std::string, KeyState> keys_;
  std::map<GroupId, ScheduledGroup> groups_;
  std::unordered_map<TaskId, ScheduledTask> tasks_;
  std::map<std::string, WaitingTasks> waiting_;        // by model
  std::set<std::pair<absl::Time, TaskId>> deadlines_;  // of waiting tasks
  std::set<std::pair<absl::Time, TaskId>> enqueued_;   // all waiting tasks, by the time since when they wait
  std::map<uint64_t, Ticket> tickets_;
  std::vector<TaskId> overdue_;
  int64_t waiting_tasks_ = 0;
  int64_t promised_tasks_ = 0;
  uint64_t next_number_ = 1;  // of tickets, and of tasks in their order
  double served_virtual_time_ = 0;
  bool may_hold_too_large_ = false;  // among the waiting tasks
};

}  // namespace tessera
