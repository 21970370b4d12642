// What the workers of a group are to do next.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::server {

using TaskId = uint64_t;
using GroupId = int32_t;

inline constexpr int kMaxStepsInFlight = 2;  // plans with a step

// What to tell a group's workers, in this order. A plan that starts tasks makes no step: they take part in the next.
struct StepPlan {
  std::vector<TaskId> end;        // EndJob: cancelled or past their deadline
  std::vector<TaskId> start;      // claim and StartJob, then OnStarted
  std::vector<TaskId> step;       // Step of these; empty: none
  int32_t steps = 1;              // so many, one after another
  std::vector<TaskId> decode;     // Decode and EndJob after those steps, their last, then OnEnded
  std::vector<TaskId> suspended;  // resident and not stepped: for metrics, nothing is sent

  bool empty() const { return end.empty() && start.empty() && step.empty() && decode.empty(); }
};

}  // namespace tessera::server
