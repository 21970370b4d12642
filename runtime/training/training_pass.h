// TrainingPass computes the losses of micro-batches and their gradients, with the model code, attention and collectives
// that also serve images, on the ranks of one replica: tokens are spread over ring x Ulysses, matrices over tensor,
// blocks over the stages of the pipe.
//
// Between stages it sends the same BlockState as serving: image tokens, text that takes part in their attention, and
// the pending long skips; and in the backward pass the gradients of these. Each stage computes everything else that it
// reads of prompts and timesteps itself, so that for the gradients of the frame (the parameters outside all blocks)
// each stage has a term of a sum (Gradients). The micro-batches are scheduled by
// parallel/plan/one_forward_one_backward.h.
//
// Every rank of a sequence computes in full what a model reads of prompts and timesteps. Those results enter the tokens
// through a collective whose gradient is the sum over the sequence. The gradients of the parameters before it are
// therefore complete on each rank (models::PartialGradient), and the sum is over a vector instead of a matrix.
//
// Samples whose texts have different lengths share a micro-batch if the model masks padding. If it neither does that
// nor pads all texts to one length (Family::pads_texts), each sample is computed in a pass by itself.
//
// Reference pictures, at which an editor looks, are tokens that go with the joint text as in serving. Each rank embeds
// its share of them, so that the gradients of the embedder are parts of a sum for them as for the image's tokens. The
// loss is that of the image's tokens alone.
//
// Shapes: b samples of the micro-batch, [c, h, w] a sample's latents, m tokens of a reference picture.
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
  TrainingTarget sample;                      // in max(fp32, model dtype), the same on every rank
  std::vector<models::ConditioningRow> rows;  // b rows, as Family::Encode makes them for one branch
  // Patches [b, m, features] of each picture that the model looks at, and the grids of these pictures, which are the
  // same in all samples; empty if it looks at none.
  std::vector<at::Tensor> references = {};
  std::vector<models::TokenGrid> reference_grids = {};
};

struct TrainingPassOptions {
  // Keeps only the inputs of each block between the forward and the backward pass, and computes a block again for its
  // gradient, with the same collectives.
  bool recompute = false;
  // The tensor ranks share the tokens out between the products that they share (parallel/plan/tensor_tokens.h):
  // all-gather and reduce-scatter in place of all-reduce.
  bool sequence_parallel = false;
  // The blocks of each stage of the pipe, as in parallel::Pipeline::bounds; not read if there is one stage.
  std::vector<int> stage_bounds = {};
  // Factors that are added to the transformer's products, or null; outlives the pass.
  const parallel::AdapterFactors* adapters = nullptr;
  // Brings the transformer's weights while they are used, or null if they are always resident. Outlives the pass.
  models::WeightResidency* weights = nullptr;
  // Called for each micro-batch when the backward pass has finished the gradients of the parameters of a part
  // (models::WeightResidency) and its weights are still resident: for the blocks from the last to the first, and then
  // for the frame.
  std::function<void(int part)> gradients_ready = {};
};

// Used by one thread, which must not be in c10::InferenceMode. The arguments outlive this object.
class TrainingPass final {
 public:
  TrainingPass(const models::Family& family, const parallel::RankGroups& groups, TrainingPassOptions options = {});

  // Adds to `grad` of every tensor that requires a gradient this rank's part of the gradient of the sum of the samples'
  // losses divided by `divisor`, the number of samples of an optimizer step over all micro-batches and replicas.
  // Returns the losses [b], weight · mean((prediction - target)²), in fp64 on the host, equal on all ranks. Every rank
  // of the replica makes the call with the same batch. Throws c10::Error for an invalid batch, and CommError.
  at::Tensor Run(const TrainingBatch& batch, double divisor) { return Run({&batch, 1}, divisor); }

  // Like Run of one micro-batch, for several in sequence, or interleaved if the pipe has several stages. Returns the
  // losses of all samples.
  at::Tensor Run(std::span<const TrainingBatch> micro_batches, double divisor);

  // Returns the losses of one micro-batch without computing gradients. Its texts have one length, or the model masks
  // padding.
  at::Tensor Evaluate(const TrainingBatch& batch);

 private:
  // Returns the losses of all tokens from those of this rank's tokens, which are zero except on the last stage.
  at::Tensor SumOverTokens(const at::Tensor& losses) const;

  const models::Family& family_;
  const parallel::RankGroups& groups_;
  const TrainingPassOptions options_;
};

}  // namespace tessera::runtime
