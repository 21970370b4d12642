// PreparedBranch holds what a branch of a job's guidance gives the model, computed once and kept for the job: the
// prompt as read by the model, and the shifts, scales and gates of the model's blocks at each of the job's steps.
//
// The modulations of many steps are computed as one product, because their matrices are a quarter of FLUX.1's weights
// and would otherwise be read in every step.
#pragma once

#include <ATen/ATen.h>

#include <span>
#include <vector>

#include "control/model/step_memory.h"
#include "models/adapters/adapter_set.h"
#include "models/families/family.h"
#include "models/transformer.h"
#include "parallel/rank_groups.h"

namespace tessera::runtime {

// Holds one rank's part; values are computed on demand. Used by one thread.
class PreparedBranch {
 public:
  // Number of steps whose modulations are computed at once, which bounds their memory: steps 0 … 63, 64 … 127, ….
  static constexpr int64_t kStepsAtOnce = control::kModulatedSteps;

  // `transformer` and `groups` outlive it. `references` [m, features] each, `timesteps` [steps], in fp64 on the model's
  // device, and `adapters` are the job's.
  PreparedBranch(const models::Transformer& transformer, const models::ConditioningRow& row,
                 std::span<const at::Tensor> references, const at::Tensor& timesteps, models::SharedAdapters adapters,
                 const parallel::RankGroups& groups);

  // [t, D], followed by the embedded references; undefined for a family without text.
  const at::Tensor& text() const { return text_; }

  // Returns the result of Transformer::Modulate [1, …] for this branch, block `block` and step `step` of the job.
  at::Tensor Modulation(int block, int64_t step);

 private:
  const models::Transformer& transformer_;
  const models::SharedAdapters adapters_;
  parallel::LocalAttention no_attention_;  // over image tokens
  const parallel::ForwardContext context_;
  const at::Tensor timesteps_;
  at::Tensor text_;
  at::Tensor vector_;   // of the prompt
  int64_t first_ = -1;  // of the steps below; -1 if there are none
  models::StepEmbedding steps_;
  std::vector<at::Tensor> blocks_;  // by block; undefined until requested; for all these steps
};

}  // namespace tessera::runtime
