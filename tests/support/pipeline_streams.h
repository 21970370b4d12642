// Makes pipelines and job streams for the pipeline simulator.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "parallel/plan/pipeline_plan.h"

namespace tessera {

using Plans = std::vector<std::vector<parallel::StageOp>>;

// Returns a pipeline of `stages` stages with one to three blocks each.
inline parallel::Pipeline Stages(int stages, int patches) {
  parallel::Pipeline pipeline{.bounds = {0}, .patches = patches};
  for (int s = 0; s < stages; ++s) pipeline.bounds.push_back(pipeline.bounds.back() + 1 + s * 2 % 3);
  return pipeline;
}

// Adds skips from the first half of the blocks to the second, from the first to the last and so on inward.
inline parallel::Pipeline WithSkips(parallel::Pipeline pipeline) {
  const int blocks = pipeline.bounds.back();
  for (int from = 0; from < blocks / 2; ++from) pipeline.skips.push_back({from, blocks - 1 - from});
  return pipeline;
}

inline std::vector<parallel::PipeStep> Jobs(int jobs, int steps, int warmup) {
  std::vector<parallel::PipeStep> stream;
  for (int job = 0; job < jobs; ++job)
    std::ranges::copy(parallel::StepsOfJob(7 + job, steps, warmup), std::back_inserter(stream));
  return stream;
}

inline Plans PlansOf(const parallel::Pipeline& pipeline, const std::vector<parallel::PipeStep>& stream) {
  Plans plans;
  for (int s = 0; s < pipeline.stages(); ++s) plans.push_back(*parallel::PipeFusionPlan(pipeline, s, stream));
  return plans;
}

// Returns the time of a job in units of a stage's time for one patch: its whole passes in sequence, then its patches in
// sequence.
inline int64_t JobTime(int stages, int patches, int steps, int warmup) {
  const int whole = std::min(steps, warmup), by_patch = steps - whole;
  const int64_t period = std::max(stages, patches);
  return int64_t{whole} * stages * patches + (by_patch == 0 ? 0 : (by_patch - 1) * period + patches + stages - 1);
}

}  // namespace tessera
