// What a RequestScheduler knows of each task, group and key. Plain values.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/scheduling/cost_model.h"
#include "server/scheduling/learned_speed.h"
#include "server/scheduling/step_plan.h"
#include "server/scheduling/waiting_tasks.h"

namespace tessera {

struct SchedulerTask {
  TaskId id = 0;
  std::string key;  // whose share it counts against
  ShapeClass shape;
  int32_t steps = 1;
  int32_t priority = 0;
  absl::Time enqueued = absl::InfinitePast();  // the original time, also after it was given back
  std::optional<absl::Time> deadline;
  bool alone = false;
};

struct GroupDescription {
  GroupId id = 0;
  std::string model;
  int32_t ranks = 1;
  int32_t max_rows = 1;     // of one batch
  double memory_bytes = 0;  // of one rank beside the weights, at most ever; 0: not known, nothing is refused for it
  double free_bytes = 0;    // of one rank, for batches of several; 0: not known
  GroupShare share;
  // Of all ranks together, which no group of its kind surpasses: what it may do for all that is known before its first
  // step.
  double most_flops_per_second = 2e15;
};

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

}  // namespace tessera
