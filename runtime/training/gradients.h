// Gradients holds the gradients of a rank's parameters: it sums them over micro-batches in the accumulation dtype,
// completes them over the ranks according to each parameter's spec, and measures and clips them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "models/loading/param_table.h"
#include "models/loading/row_span.h"
#include "models/loading/sharded_weights.h"
#include "runtime/training/training_groups.h"

namespace tessera::runtime {

struct GradientsOptions {
  // See TrainingPassOptions.
  bool sequence_parallel = false;
  // Whether the model's blocks are on several stages of a pipe. Parameters outside all blocks are on every stage.
  bool staged = false;
  // The owner of the parameters' weights, or null; outlives the gradients. If set, a rank keeps only the gradients of
  // its rows, and Collect is collective over all data ranks and sums over them.
  const models::ShardedWeights* sharded = nullptr;
};

// Parameters that are synchronised in the same way are stored in one tensor, so that a step needs few collectives
// whatever the number of parameters. Used by one thread.
class Gradients final {
 public:
  // Takes those parameters that require a gradient, in this order. They share storage with the model; all parts of a
  // packed storage must be included.
  explicit Gradients(std::span<const models::Param> params, const GradientsOptions& options = {});

  // Adds the gradients that backward passes have accumulated in the parameters since the last call, and clears them
  // there; for the parameters of one part (models::WeightResidency), or for all.
  void Collect(int part);
  void Collect();

  // Completes every gradient to that of the whole loss: sums over the replicas, over the sequence and tensor axes for
  // parameters whose gradient there is a term of a sum (models::PartialGradient), and over the stages for parameters
  // that are on all of them. Called once per step by every rank, after the last Collect.
  void Synchronize(const TrainingGroups& groups);

  // Returns the Euclidean norm over all elements of all parameters of the whole model, each counted once. Equal on all
  // ranks. Called after Synchronize.
  double GlobalNorm(const TrainingGroups& groups) const;

  // Multiplies all gradients by max_norm / (norm + 1e-6) if that is below 1, like torch.nn.utils.clip_grad_norm_.
  void Clip(double norm, double max_norm);

  // Sets all gradients to zero for the next step.
  void Clear();

  const std::vector<models::Param>& params() const { return params_; }
  // Returns a view of the gradient of params()[index], for the rows of this rank's part that this rank keeps.
  at::Tensor Of(size_t index) const { return of_params_[index]; }
  models::RowSpan RowsOfParam(size_t index) const;
  // Null if this rank keeps all rows.
  const models::ShardedWeights* sharded() const { return sharded_; }

 private:
  // Parameters that are synchronised in the same way, in one tensor.
  struct Flat {
    models::PartialGradient partial;  // kTokens: the tensor ranks share the tokens out
    bool split = false;               // over the tensor axis
    bool on_all_stages = false;       // on all stages of the pipe, each of which has a term of the sum
    at::Tensor values;                // [elements]
  };

  // Adds the sum over the data ranks of the accumulated gradients of those parameters, for this rank's rows.
  void AddOwnRows(std::span<const size_t> indices);

  std::vector<models::Param> params_;
  const models::ShardedWeights* const sharded_;
  std::map<int64_t, std::vector<size_t>> parts_;  // indices of the parameters of each part
  std::vector<at::Tensor> of_params_;             // views of the flats
  std::vector<Flat> flats_;
};

}  // namespace tessera::runtime
