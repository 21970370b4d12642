#include "runtime/training/optimizer.h"

#include <algorithm>
#include <cmath>

#include "models/precision.h"

namespace tessera::runtime {

AdamW::AdamW(Gradients& gradients, const AdamWOptions& options) : gradients_(gradients), options_(options) {
  const at::NoGradGuard no_gradients;
  for (const models::Param& param : gradients.params()) {
    const at::Tensor value = param.Value().detach();
    const at::ScalarType wide = models::AccumulationType(value.scalar_type());
    const at::Tensor master = value.to(wide, /*non_blocking=*/false, /*copy=*/true);
    state_.push_back({.param = &param,
                      .master = master,
                      .exp_avg = at::zeros_like(master),
                      .exp_avg_sq = at::zeros_like(master),
                      .ema = options.ema_decay > 0 ? master.clone() : at::Tensor()});
  }
}

void AdamW::Step(double learning_rate) {
  const at::NoGradGuard no_gradients;
  const double steps = static_cast<double>(step_ + 1);
  const double correction1 = 1 - std::pow(options_.beta1, steps), correction2 = 1 - std::pow(options_.beta2, steps);
  const double average_decay =
      std::min(options_.ema_decay, (1 + static_cast<double>(step_)) / (10 + static_cast<double>(step_)));
  for (size_t i = 0; i < state_.size(); ++i) {
    const OptimizerState& own = state_[i];
    const at::Tensor gradient = gradients_.Of(i);
    own.master.mul_(1 - learning_rate * options_.weight_decay);
    own.exp_avg.lerp_(gradient, 1 - options_.beta1);
    own.exp_avg_sq.mul_(options_.beta2).addcmul_(gradient, gradient, 1 - options_.beta2);
    const at::Tensor divisor = (own.exp_avg_sq.sqrt() / std::sqrt(correction2)).add_(options_.eps);
    own.master.addcdiv_(own.exp_avg, divisor, -learning_rate / correction1);
    if (own.ema.defined()) own.ema.mul_(average_decay).add_(own.master, 1 - average_decay);
  }
  ++step_;
  WriteWeights();
}

void AdamW::WriteWeights() {
  const at::NoGradGuard no_gradients;
  for (const OptimizerState& own : state_) own.param->Value().copy_(own.master);
}

void AdamW::Resume(int64_t step) {
  step_ = step;
  WriteWeights();
}

void AdamW::UseAverage(bool average) {
  if (options_.ema_decay == 0) return;
  if (!average) return WriteWeights();
  const at::NoGradGuard no_gradients;
  for (const OptimizerState& own : state_) own.param->Value().copy_(own.ema);
}

}  // namespace tessera::runtime
