// AdamW (Loshchilov and Hutter, 2019) as torch.optim.AdamW computes it, on master weights and moments of the
// accumulation dtype, and a moving average of the weights. A rank keeps the state of its own parts of the parameters;
// or replicas share it out by rows, and each moves its rows and sends the new weights to the others (Rajbhandari et
// al., 2020: ZeRO, stage 1), unless they share out the weights too (ShardedWeights).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/training/gradients.h"

namespace tessera::runtime {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;  // decoupled
  double ema_decay = 0;        // 0: no moving average is kept
};

// What is kept for one parameter: rows [begin, end) of this rank's part along dimension 0, all of them unless replicas
// share the state. Each tensor in max(fp32, dtype). What is written into them is what the next step goes on from.
struct OptimizerState {
  const models::Param* param = nullptr;
  int64_t begin = 0, end = 0;
  at::Tensor master;      // the weights before they are rounded to the model's dtype
  at::Tensor exp_avg;     // moving average of gradients
  at::Tensor exp_avg_sq;  // and of their squares
  at::Tensor ema;         // and of the master weights; undefined where none is kept
};

// Used by one thread. `gradients` outlives it.
class AdamW final {
 public:
  // Starts from the parameters as they are. `sharing`: the replicas that share out the state, which outlive this and
  // call Step, Resume and UseAverage together; null: this rank keeps all of it. Of sharded weights, which no part is
  // brought of in any call, each rank keeps the state of its own rows in any case.
  AdamW(Gradients& gradients, const AdamWOptions& options, parallel::Communicator* sharing = nullptr);

  // One step with the gradients as they are, synchronised and clipped: moves the master weights, writes them rounded
  // into the model's, and moves their average by the decay min(ema_decay, (1 + k) / (10 + k)) at step k from 0.
  void Step(double learning_rate);

  // Steps done.
  int64_t step() const { return step_; }

  // By parameter, in the order of Gradients::params(). To resume, fill the tensors and call Resume.
  const std::vector<OptimizerState>& state() const { return state_; }
  // The state is that after `step` steps: writes the master weights into the model's.
  void Resume(int64_t step);

  // Puts the averaged weights into the model, and the master weights back; nothing where no average is kept.
  void UseAverage(bool average);

 private:
  // Into the model, on every replica, or of sharded weights into this rank's rows; `kept` is master or ema.
  void WriteWeights(at::Tensor OptimizerState::*kept);

  Gradients& gradients_;
  const AdamWOptions options_;
  parallel::Communicator* sharing_;
  std::vector<OptimizerState> state_;
  int64_t step_ = 0;
};

}  // namespace tessera::runtime
