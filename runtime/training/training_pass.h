// The loss of one micro-batch and its gradients, through the model code, attention and collectives that serve images,
// on the ranks of one replica: tokens are spread over ring x Ulysses, matrices over tensor. The blocks are all on every
// rank.
//
// What a model reads of prompts and timesteps every rank of a sequence computes whole. Its results enter the tokens
// through a collective whose gradient is the sum over the sequence, so that the gradients of the parameters behind it
// are whole on each rank (models::PartialGradient), and what is summed is a vector and not a matrix.
//
// Shapes: b samples of the micro-batch, [c, h, w] a sample's latents.
#pragma once

#include <ATen/ATen.h>

#include <functional>
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
  // Beside the transformer's products, or null; outlives the pass.
  const parallel::AdapterFactors* adapters = nullptr;
  // Brings the transformer's weights for the time that they are computed with, or null: they are always there. Outlives
  // the pass.
  models::WeightResidency* weights = nullptr;
  // Called when the backward pass has left all it has for the parameters of a part (models::WeightResidency), whose
  // weights are still there: of the blocks from the last to the first, and then of the frame.
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
  at::Tensor Run(const TrainingBatch& batch, double divisor);

  // The same losses without gradients.
  at::Tensor Evaluate(const TrainingBatch& batch);

 private:
  at::Tensor SumOverTokens(const at::Tensor& losses) const;

  const models::Family& family_;
  const parallel::RankGroups& groups_;
  const TrainingPassOptions options_;
};

}  // namespace tessera::runtime
