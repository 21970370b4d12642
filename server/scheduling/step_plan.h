// StepPlan holds the commands that a group's workers execute next.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::server {

using TaskId = uint64_t;
using GroupId = int32_t;

inline constexpr int kMaxStepsInFlight = 2;  // plans that contain a step

// The commands to send to a group's workers, in this order. A plan that starts tasks makes no step: they take part in
// the next.
struct StepPlan {
  std::vector<TaskId> end;        // EndJob: cancelled or past their deadline
  std::vector<TaskId> start;      // claim and StartJob, then OnStarted
  std::vector<TaskId> step;       // tasks to Step; empty: no step
  int32_t steps = 1;              // number of steps, one after another
  std::vector<TaskId> decode;     // Decode and EndJob after those steps, their last, then OnEnded
  std::vector<TaskId> suspended;  // resident but not stepped; only for metrics, not sent

  bool empty() const { return end.empty() && start.empty() && step.empty() && decode.empty(); }
};

}  // namespace tessera::server
