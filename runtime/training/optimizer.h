// Implements AdamW (Loshchilov and Hutter, 2019) like torch.optim.AdamW, on master weights and moments of the
// accumulation dtype, with a moving average of the weights. A rank keeps the state of its parts of the parameters.
// Alternatively replicas share the state out by rows, and each updates its rows and sends the new weights to the others
// (Rajbhandari et al., 2020: ZeRO, stage 1), unless the weights are shared out too (ShardedWeights).
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

// The state of one parameter: rows [begin, end) of this rank's part along dimension 0, which are all rows unless
// replicas share the state out. Each tensor is in max(fp32, dtype). The next step continues from the tensors' contents,
// so writing to them restores a state.
struct OptimizerState {
  const models::Param* param = nullptr;
  int64_t begin = 0, end = 0;
  at::Tensor master;      // the weights before rounding to the model's dtype
  at::Tensor exp_avg;     // moving average of gradients
  at::Tensor exp_avg_sq;  // moving average of squared gradients
  at::Tensor ema;         // moving average of the master weights; undefined if none is kept
};

// Used by one thread. `gradients` outlives it.
class AdamW final {
 public:
  // Starts from the parameters' current values. `sharing` are the replicas that share the state out, which outlive this
  // object and call Step, Resume and UseAverage together; null if this rank keeps all of it. With sharded weights each
  // rank keeps the state of its rows in any case, and no call brings any part of the weights.
  AdamW(Gradients& gradients, const AdamWOptions& options, parallel::Communicator* sharing = nullptr);

  // Takes one step with the current gradients, synchronised and clipped: updates the master weights, writes them
  // rounded into the model's, and updates their average with the decay min(ema_decay, (1 + k) / (10 + k)) at step k,
  // counted from 0.
  void Step(double learning_rate);

  // Returns the number of steps taken.
  int64_t step() const { return step_; }

  // The state by parameter, in the order of Gradients::params(). To resume, fill the tensors and call Resume.
  const std::vector<OptimizerState>& state() const { return state_; }
  // Declares that the state is that after `step` steps, and writes the master weights into the model's.
  void Resume(int64_t step);

  // Puts the averaged weights into the model, or the master weights back. Does nothing if no average is kept.
  void UseAverage(bool average);

 private:
  // Writes into the model's weights on every replica, or into this rank's rows of sharded weights; `kept` is master or
  // ema.
  void WriteWeights(at::Tensor OptimizerState::*kept);

  Gradients& gradients_;
  const AdamWOptions options_;
  parallel::Communicator* sharing_;
  std::vector<OptimizerState> state_;
  int64_t step_ = 0;
};

}  // namespace tessera::runtime
