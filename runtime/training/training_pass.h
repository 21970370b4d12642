// The losses of micro-batches and their gradients, through the model code, attention and collectives that serve images,
// on the ranks of one replica: tokens are spread over ring x Ulysses, matrices over tensor, blocks over the stages of
// the pipe.
//
// What passes between stages is the BlockState that serves: image tokens, text that takes part in their attention, and
// the long skips on their way; and the same backwards, of gradients. All else a stage reads of prompts and timesteps it
// computes for itself, so that of the gradients of the frame, the parameters in no block, each stage has a part of a
// sum (Gradients). The micro-batches follow one another by parallel/plan/one_forward_one_backward.h.
//
// What a model reads of prompts and timesteps every rank of a sequence computes whole. Its results enter the tokens
// through a collective whose gradient is the sum over the sequence, so that the gradients of the parameters behind it
// are whole on each rank (models::PartialGradient), and what is summed is a vector and not a matrix.
//
// Shapes: b samples of the micro-batch, [c, h, w] a sample's latents.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <span>
#include <vector>

#include "models/families/family.h"
#include "models/loading/weight_residency.h"
#include "parallel/rank_groups.h"
#include "runtime/training/objective.h"

namespace tessera::runtime {

struct TrainingBatch {
  TrainingTarget sample;                      // of max(fp32, model dtype), the same on every rank
  std::vector<models::ConditioningRow> rows;  // b of them, as Family::Encode makes them for one branch
};

struct TrainingPassOptions {
  // Between the two halves of a pass only what enters each block is kept, and a block is computed again for its
  // gradient, with the same collectives.
  bool recompute = false;
  // The tensor ranks share out the tokens outside of the products that they share (parallel/plan/tensor_tokens.h):
  // all-gather and reduce-scatter in place of all-reduce.
  bool sequence_parallel = false;
  // Which blocks each stage of the pipe has, as parallel::Pipeline::bounds says it; not read where there is one stage.
  std::vector<int> stage_bounds = {};
  // Beside the transformer's products, or null; outlives the pass.
  const parallel::AdapterFactors* adapters = nullptr;
  // Brings the transformer's weights for the time that they are computed with, or null: they are always there. Outlives
  // the pass.
  models::WeightResidency* weights = nullptr;
  // Called when the backward pass has left all it has for the parameters of a part (models::WeightResidency), whose
  // weights are still there: of the blocks from the last to the first, and then of the frame. For each micro-batch.
  std::function<void(int part)> gradients_ready = {};
};

// Used by one thread, which is not in c10::InferenceMode. What it is given outlives it.
class TrainingPass final {
 public:
  TrainingPass(const models::Family& family, const parallel::RankGroups& groups, TrainingPassOptions options = {});

  // Adds to `grad` of every tensor that requires a gradient this rank's part of that of the sum of the samples' losses
  // over `divisor`: the number of samples of an optimizer step, over all micro-batches and replicas. Returns the losses
  // [b], weight · mean((prediction - target)²), in fp64 on the host, equal on all ranks. Every rank of the replica
  // makes the call with the same batch. Throws c10::Error for a batch that is none, and CommError.
  at::Tensor Run(const TrainingBatch& batch, double divisor) { return Run({&batch, 1}, divisor); }

  // The same of several micro-batches, one after another, or all under way at once where the pipe has stages. Returns
  // the losses of all samples.
  at::Tensor Run(std::span<const TrainingBatch> micro_batches, double divisor);

  // The losses of one without gradients.
  at::Tensor Evaluate(const TrainingBatch& batch);

 private:
  // Of this rank's tokens, zeros but on the last stage → of all.
  at::Tensor SumOverTokens(const at::Tensor& losses) const;

  const models::Family& family_;
  const parallel::RankGroups& groups_;
  const TrainingPassOptions options_;
};

}  // namespace tessera::runtime
