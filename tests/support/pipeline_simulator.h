// Simulates the plans of all pipeline stages against each other, with messages that carry only their labels, and checks
// that the plans do the work of a stream of steps: no deadlock, every pass through every block once and in order, every
// message received once, by the stage that expects it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "parallel/plan/pipeline_plan.h"

namespace tessera {

struct SimulatedRun {
  // Times are in units of one stage's time for one patch. Messages take no time.
  int64_t end = 0;                   // when the last stage is done
  std::vector<int64_t> idle;         // by stage, from the start to `end`
  std::vector<int> most_skips_held;  // by stage: skip messages received and not yet used
};

// Stage s executes `plans[s]` in order. With `buffered`, each stage may have one message in flight to each other stage;
// otherwise every send waits for its receive. Returns an Internal error that names the stage and the operation if a
// plan is wrong.
absl::StatusOr<SimulatedRun> SimulatePipeline(const parallel::Pipeline& pipeline,
                                              std::span<const parallel::PipeStep> stream,
                                              const std::vector<std::vector<parallel::StageOp>>& plans, bool buffered);

}  // namespace tessera
