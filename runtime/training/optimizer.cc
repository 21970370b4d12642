#include "runtime/training/optimizer.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "models/precision.h"

namespace tessera::runtime {
namespace {

int SizeOf(const parallel::Communicator* sharing) { return sharing == nullptr ? 1 : sharing->size(); }

// Returns the divisor that corrects moments which started at zero, after that many steps.
double Correction(double beta, int64_t step) { return 1 - std::pow(beta, static_cast<double>(step)); }

void Move(const OptimizerState& own, const at::Tensor& gradient, const AdamWOptions& options, double learning_rate,
          int64_t step) {
  own.master.mul_(1 - learning_rate * options.weight_decay);
  own.exp_avg.lerp_(gradient, 1 - options.beta1);
  own.exp_avg_sq.mul_(options.beta2).addcmul_(gradient, gradient, 1 - options.beta2);
  const at::Tensor divisor = (own.exp_avg_sq.sqrt() / std::sqrt(Correction(options.beta2, step))).add_(options.eps);
  own.master.addcdiv_(own.exp_avg, divisor, -learning_rate / Correction(options.beta1, step));
}

// Does the same as Move with each number read and written once. The arithmetic of an element depends only on its
// numbers, not on its position, so that replicas that share the state out compute the same weights.
void MoveInOnePass(const OptimizerState& own, const at::Tensor& gradient, const AdamWOptions& options,
                   double learning_rate, int64_t step) {
  constexpr int64_t kGrain = 32768;
  const auto decay = static_cast<float>(1 - learning_rate * options.weight_decay);
  const auto keep = static_cast<float>(options.beta2), take = static_cast<float>(1 - options.beta1),
             take_square = static_cast<float>(1 - options.beta2), eps = static_cast<float>(options.eps);
  const auto root = static_cast<float>(std::sqrt(Correction(options.beta2, step)));
  const auto rate = static_cast<float>(learning_rate / Correction(options.beta1, step));
  const at::Tensor values = gradient.contiguous();
  const float* g = values.const_data_ptr<float>();
  float* const master = own.master.mutable_data_ptr<float>();
  float* const average = own.exp_avg.mutable_data_ptr<float>();
  float* const square = own.exp_avg_sq.mutable_data_ptr<float>();
  kernels::cpu::ParallelFor(own.master.numel(), kGrain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      average[i] += (g[i] - average[i]) * take;
      square[i] = square[i] * keep + g[i] * g[i] * take_square;
      master[i] = master[i] * decay - rate * (average[i] / (std::sqrt(square[i]) / root + eps));
    }
  });
}

}  // namespace

AdamW::AdamW(Gradients& gradients, const AdamWOptions& options, parallel::Communicator* sharing)
    : gradients_(gradients), options_(options), sharing_(sharing) {
  const at::NoGradGuard no_gradients;
  const models::ShardedWeights* sharded = gradients.sharded();
  for (size_t i = 0; i < gradients.params().size(); ++i) {
    const models::Param& param = gradients.params()[i];
    const models::RowSpan rows = sharded != nullptr
                                     ? gradients.RowsOfParam(i)
                                     : RowsOf(param, sharing == nullptr ? 0 : sharing->rank(), SizeOf(sharing));
    const at::Tensor value = sharded != nullptr ? sharded->OwnRows(param) : rows.Of(param.Value().detach());
    const at::ScalarType wide = models::AccumulationType(value.scalar_type());
    const at::Tensor master = value.to(wide, /*non_blocking=*/false, /*copy=*/true);
    state_.push_back({.param = &param,
                      .begin = rows.begin,
                      .end = rows.end,
                      .master = master,
                      .exp_avg = at::zeros_like(master),
                      .exp_avg_sq = at::zeros_like(master),
                      .ema = options.ema_decay > 0 ? master.clone() : at::Tensor()});
  }
}

void AdamW::Step(double learning_rate) {
  const at::NoGradGuard no_gradients;
  const double average_decay =
      std::min(options_.ema_decay, (1 + static_cast<double>(step_)) / (10 + static_cast<double>(step_)));
  ++step_;
  for (size_t i = 0; i < state_.size(); ++i) {
    const OptimizerState& own = state_[i];
    const at::Tensor gradient =
        gradients_.Of(i).narrow(0, own.begin - gradients_.RowsOfParam(i).begin, own.end - own.begin);
    if (own.master.is_cpu() && own.master.scalar_type() == at::kFloat) {
      MoveInOnePass(own, gradient, options_, learning_rate, step_);
    } else {
      Move(own, gradient, options_, learning_rate, step_);
    }
    if (own.ema.defined()) own.ema.mul_(average_decay).add_(own.master, 1 - average_decay);
  }
  WriteWeights(&OptimizerState::master);
}

void AdamW::WriteWeights(at::Tensor OptimizerState::*kept) {
  const at::NoGradGuard no_gradients;
  if (state_.empty()) return;
  if (const models::ShardedWeights* sharded = gradients_.sharded()) {
    for (const OptimizerState& own : state_) sharded->OwnRows(*own.param).copy_(own.*kept);
    return;
  }
  if (SizeOf(sharing_) == 1) {
    for (const OptimizerState& own : state_) own.param->Value().copy_(own.*kept);
    return;
  }
  // Every replica's rows of all parameters in one message, in the model's dtype.
  std::vector<at::Tensor> rows;
  std::vector<int64_t> elements(static_cast<size_t>(sharing_->size()), 0);
  for (const OptimizerState& own : state_) {
    rows.push_back((own.*kept).to(own.param->storage.scalar_type()).flatten());
    for (int rank = 0; rank < sharing_->size(); ++rank) {
      elements[static_cast<size_t>(rank)] +=
          RowsOf(*own.param, rank, sharing_->size()).count() * RowElements(*own.param);
    }
  }
  const at::Tensor all = sharing_->AllGather(at::cat(rows), elements);
  int64_t first = 0;
  for (int rank = 0; rank < sharing_->size(); ++rank) {
    for (const OptimizerState& own : state_) {
      const at::Tensor place = RowsOf(*own.param, rank, sharing_->size()).Of(own.param->Value());
      place.copy_(all.narrow(0, first, place.numel()).view(place.sizes()));
      first += place.numel();
    }
  }
}

void AdamW::Resume(int64_t step) {
  step_ = step;
  WriteWeights(&OptimizerState::master);
}

void AdamW::UseAverage(bool average) {
  if (options_.ema_decay == 0) return;
  WriteWeights(average ? &OptimizerState::ema : &OptimizerState::master);
}

}  // namespace tessera::runtime
