// ScheduledTask holds what a RequestScheduler knows of one task. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "server/scheduling/shape_class.h"
#include "server/scheduling/step_plan.h"
#include "server/scheduling/waiting_tasks.h"

namespace tessera::server {

struct SchedulerTask {
  TaskId id = 0;
  std::string key;  // the key whose share it uses
  ShapeClass shape;
  int32_t steps = 1;  // expected until the worker has started the task, then the number that it runs
  int32_t priority = 0;
  absl::Time enqueued = absl::InfinitePast();  // the first time, even if it was requeued
  std::optional<absl::Time> deadline;
  bool isolated = false;
};

enum class TaskPhase : uint8_t {
  kWaiting,
  kStarting,   // sent to the workers, not answered yet
  kActive,     // in the batch
  kSuspended,  // in the worker, not in the batch
  kDecoding,   // all its steps are issued
  kLeaving,    // the command to end was sent
};

struct ScheduledTask {
  SchedulerTask spec;
  WaitingTask order;
  TaskPhase phase = TaskPhase::kWaiting;
  GroupId group = -1;              // set while the task is in a worker
  std::optional<GroupId> held_by;  // the group that empties itself for this waiting task
  bool cancelled = false;          // must leave with the next plan
  int32_t issued = 0;              // steps issued
  double step_flops = 0;
  double codec_flops = 0;        // of encoding its pictures and of decoding its image
  double charged = 0;            // operations charged to its key for this run
  double charged_weight = 1;     // the key's weight at that time
  double preempted_seconds = 0;  // predicted duration of the tasks that went first while it was suspended

  double TotalFlops() const { return spec.steps * step_flops + codec_flops; }
  double RemainingFlops() const { return (spec.steps - issued) * step_flops + codec_flops; }
  WaitingClass ClassOf() const { return {.isolated = spec.isolated, .shape = spec.shape}; }
};

}  // namespace tessera::server
