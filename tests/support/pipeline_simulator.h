// Runs the plans of all pipeline stages against each other, with messages that hold nothing but what they are about,
// and says whether they do the work of a stream of steps: no deadlock, every pass through every block once and in
// order, every message received once, by a stage that expects exactly it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "parallel/plan/pipeline_plan.h"

namespace tessera {

struct SimulatedRun {
  // In the time a stage needs for one patch; messages take none.
  int64_t end = 0;                   // when the last stage is done
  std::vector<int64_t> idle;         // by stage, from the start to `end`
  std::vector<int> most_skips_held;  // by stage: messages of skips received and not yet used up
};

// `plans[s]` is run by stage s, one operation after the other. `buffered`: one message may be under way from
// each stage to each other before its sender waits; otherwise every send waits for its receive. Internal, naming the
// stage and the operation, for a plan that is wrong.
absl::StatusOr<SimulatedRun> SimulatePipeline(const parallel::Pipeline& pipeline,
                                              std::span<const parallel::PipeStep> stream,
                                              const std::vector<std::vector<parallel::StageOp>>& plans, bool buffered);

}  // namespace tessera
