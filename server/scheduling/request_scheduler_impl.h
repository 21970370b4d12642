// The state behind RequestScheduler; included by its sources only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "server/scheduling/cost_model.h"
#include "server/scheduling/learned_speed.h"
#include "server/scheduling/request_scheduler.h"
#include "server/scheduling/waiting_tasks.h"

namespace tessera {

enum class TaskPhase : uint8_t {
  kWaiting,
  kStarting,  // told to the workers, not yet answered
  kActive,    // in the batch
  kParked,    // in the worker, not in the batch
  kDecoding,  // all its steps are issued
  kLeaving,   // told to end
};

struct ScheduledTask {
  SchedulerTask spec;
  WaitingTask order;
  TaskPhase phase = TaskPhase::kWaiting;
  GroupId group = -1;              // of a task that is in a worker
  std::optional<GroupId> held_by;  // the group that empties itself for this waiting task
  bool cancelled = false;          // must leave with the next plan
  int32_t issued = 0;              // steps
  double step_flops = 0;
  double decode_flops = 0;
  double charged = 0;            // operations charged to its key for this run
  double charged_weight = 1;     // that the key had then
  double overtaken_seconds = 0;  // predicted, of the tasks that went before it while it was parked

  double TotalFlops() const { return spec.steps * step_flops + decode_flops; }
  double RemainingFlops() const { return (spec.steps - issued) * step_flops + decode_flops; }
  WaitingClass ClassOf() const { return {.alone = spec.alone, .shape = spec.shape}; }
};

struct StepInFlight {
  ShapeClass shape;
  double flops = 0;
};

struct ScheduledGroup {
  GroupDescription description;
  LearnedSpeed speed;
  bool ready = false;
  bool draining = false;
  bool retired = false;
  std::vector<TaskId> residents;  // in the order of their starts
  std::deque<StepInFlight> in_flight;
  std::optional<TaskId> holds;  // the waiting task for which it starts nothing else
  std::set<ShapeClass> apart;   // classes whose tasks share no batch here
};

struct KeyState {
  double weight = 1;
  double virtual_time = 0;  // charged operations by weight, never behind those that were served
  double charged = 0;       // operations
  int64_t live = 0;         // tasks that wait or run
  int64_t promised = 0;     // by tickets
  double flops = 0;         // predicted, that these still need
};

struct Ticket {
  std::string key;
  std::string model;
  int32_t tasks = 0;
  double flops = 0;  // of one task
};

class RequestScheduler::Impl {
 public:
  explicit Impl(const SchedulerOptions& options) : options(options) {}

  ScheduledTask* Find(TaskId id) {
    const auto task = tasks.find(id);
    return task == tasks.end() ? nullptr : &task->second;
  }
  const ScheduledTask* Find(TaskId id) const { return const_cast<Impl*>(this)->Find(id); }
  ScheduledGroup* FindGroup(GroupId id) {
    const auto group = groups.find(id);
    return group == groups.end() ? nullptr : &group->second;
  }
  KeyState& KeyOf(const std::string& key) { return keys[key]; }
  const ModelCost& CostOfModel(const std::string& model) const;

  // request_scheduler.cc
  void AddWaiting(ScheduledTask& task);
  void RemoveWaiting(ScheduledTask& task);
  void LetGo(ScheduledGroup& group);  // of the waiting task that it holds
  void Forget(TaskId id);             // a task that is not waiting any more

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

  SchedulerOptions options;
  std::map<std::string, ModelCost> models;
  std::map<std::string, KeyState> keys;
  std::map<GroupId, ScheduledGroup> groups;
  std::unordered_map<TaskId, ScheduledTask> tasks;
  std::map<std::string, WaitingTasks> waiting;        // by model
  std::set<std::pair<absl::Time, TaskId>> deadlines;  // of waiting tasks
  std::set<std::pair<absl::Time, TaskId>> enqueued;   // all waiting tasks, by the time since when they wait
  std::map<uint64_t, Ticket> tickets;
  std::vector<TaskId> overdue;
  int64_t waiting_tasks = 0;
  int64_t promised_tasks = 0;
  uint64_t next_sequence = 1;
  uint64_t next_ticket = 1;
  double served_virtual_time = 0;
  bool may_hold_too_large = false;  // among the waiting tasks
};

}  // namespace tessera
