#include "runtime/training/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera::runtime {

double LearningRate::At(int64_t step) const {
  if (step < warmup_steps) return base * static_cast<double>(step) / static_cast<double>(warmup_steps);
  if (schedule == control::LearningRateSchedule::kConstant) return base;
  const bool whole = schedule == control::LearningRateSchedule::kCosine;
  const int64_t begin = whole ? warmup_steps : std::max(warmup_steps, steps - decay_steps);
  if (step < begin) return base;
  const double progress = static_cast<double>(step - begin) / static_cast<double>(std::max<int64_t>(1, steps - begin));
  return base * std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * progress)));
}

}  // namespace tessera::runtime
