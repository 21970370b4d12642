#include "server/scheduling/learned_speed.h"

#include <cmath>

namespace tessera {
namespace {

// Weight of the newest observation: ten steps make two thirds of the mean.
constexpr double kNewest = 0.1;
// Classes remembered; more would let requests of ever new sizes fill the memory.
constexpr size_t kMaxClasses = 1024;

}  // namespace

void LearnedSpeed::Observe(const ShapeClass& shape, double flops, double seconds) {
  const double observed = seconds / flops;
  if (!std::isfinite(observed) || observed <= 0) return;
  overall_ = seen_ ? overall_ + kNewest * (observed - overall_) : observed;
  seen_ = true;
  const auto known = of_class_.find(shape);
  if (known != of_class_.end()) {
    known->second += kNewest * (observed - known->second);
  } else if (of_class_.size() < kMaxClasses) {
    of_class_.emplace(shape, observed);
  }
}

double LearnedSpeed::SecondsPerFlop(const ShapeClass& shape) const {
  const auto known = of_class_.find(shape);
  return known != of_class_.end() ? known->second : overall_;
}

}  // namespace tessera
