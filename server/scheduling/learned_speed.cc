#include "server/scheduling/learned_speed.h"

#include <algorithm>
#include <cmath>

namespace tessera::server {
namespace {

// Weight of the newest observation: the last ten steps make up two thirds of the mean.
constexpr double kNewest = 0.1;
// Maximum number of classes remembered; without it, requests of ever new sizes would fill the memory.
constexpr size_t kMaxClasses = 1024;
// The first steps of a class may include one-time work, such as packing weights and choosing kernels.
constexpr int kOftenEnough = 3;
// A small image uses a device at most this many times worse than a large one.
constexpr double kBetterUse = 8;

}  // namespace

void LearnedSpeed::Observe(const ShapeClass& shape, double flops, double seconds) {
  const double observed = seconds / flops;
  if (!std::isfinite(observed) || observed <= 0) return;
  overall_ = seen_ ? overall_ + kNewest * (observed - overall_) : observed;
  fastest_ = seen_ ? std::min(fastest_, observed) : observed;
  seen_ = true;
  const auto known = of_class_.find(shape);
  if (known != of_class_.end()) {
    Class& seen = known->second;
    seen.mean += kNewest * (observed - seen.mean);
    seen.fastest = std::min(seen.fastest, observed);
    seen.steps = std::min(seen.steps + 1, kOftenEnough);
  } else if (of_class_.size() < kMaxClasses) {
    of_class_.emplace(shape, Class{.mean = observed, .fastest = observed, .steps = 1});
  }
}

double LearnedSpeed::SecondsPerFlop(const ShapeClass& shape) const {
  const auto known = of_class_.find(shape);
  return known != of_class_.end() ? known->second.mean : overall_;
}

bool LearnedSpeed::Knows(const ShapeClass& shape) const {
  const auto known = of_class_.find(shape);
  return known != of_class_.end() && known->second.steps >= kOftenEnough;
}

double LearnedSpeed::LeastSecondsPerFlop(const ShapeClass& shape, double unseen) const {
  if (Knows(shape)) return of_class_.find(shape)->second.fastest;
  return seen_ ? std::min(fastest_ / kBetterUse, initial_) : unseen;
}

}  // namespace tessera::server
