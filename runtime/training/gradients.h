// The gradients of a rank's parameters: summed over micro-batches in the accumulation dtype, made whole over the ranks
// by what each parameter's spec says of it, measured and clipped.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "models/loading/param_table.h"
#include "runtime/training/row_span.h"
#include "runtime/training/sharded_weights.h"
#include "runtime/training/training_groups.h"

namespace tessera::runtime {

struct GradientsOptions {
  // As in TrainingPassOptions.
  bool sequence_parallel = false;
  // The model's blocks are on several stages of a pipe. What is in no block is on all of them.
  bool staged = false;
  // Has the parameters' weights, or null; outlives the gradients. A rank then keeps the gradients of its own rows
  // alone: Collect is of all data ranks together, and sums over them.
  const ShardedWeights* sharded = nullptr;
};

// Parameters that are synchronised alike lie one after another in one tensor, so that a step takes few collectives
// whatever the number of parameters. Used by one thread.
class Gradients final {
 public:
  // Of those parameters that require a gradient, in this order. They share storage with the model, and every part of a
  // packed storage is among them.
  explicit Gradients(std::span<const models::Param> params, const GradientsOptions& options = {});

  // Adds what the backward passes since the last call have left in the parameters, and clears it there. Of the
  // parameters of a part (models::WeightResidency), or of all.
  void Collect(int part);
  void Collect();

  // Makes every gradient that of the whole loss: sums over the replicas, over the sequence and over the tensor axis
  // what is a part of a sum there (models::PartialGradient), and over the stages what is on all of them. Once a step,
  // by every rank, after the last Collect.
  void Synchronize(const TrainingGroups& groups);

  // The Euclidean norm over every element of every parameter of the whole model, each counted once; the same on every
  // rank. After Synchronize.
  double GlobalNorm(const TrainingGroups& groups) const;

  // Scales all by max_norm / (norm + 1e-6) where that is below 1, as torch.nn.utils.clip_grad_norm_.
  void Clip(double norm, double max_norm);

  // To zero, for the next step.
  void Clear();

  const std::vector<models::Param>& params() const { return params_; }
  // Of the rows of params()[index] that this rank keeps, of its part of the parameter; a view.
  at::Tensor Of(size_t index) const { return of_params_[index]; }
  RowSpan RowsOfParam(size_t index) const;
  // Null: of all rows.
  const ShardedWeights* sharded() const { return sharded_; }

 private:
  // Parameters of one rule, side by side.
  struct Flat {
    models::PartialGradient partial;  // kTokens: the tensor ranks share them out
    bool split = false;               // over the tensor axis
    bool on_all_stages = false;       // of the pipe, each of which has a part of the sum
    at::Tensor values;                // [elements]
  };

  // Adds the sum over the data ranks of what they left in those parameters, by their rows.
  void AddOwnRows(std::span<const size_t> indices);

  std::vector<models::Param> params_;
  const ShardedWeights* const sharded_;
  std::map<int64_t, std::vector<size_t>> parts_;  // parameters of each, by index
  std::vector<at::Tensor> of_params_;             // views of the flats
  std::vector<Flat> flats_;
};

}  // namespace tessera::runtime
