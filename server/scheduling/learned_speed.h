// LearnedSpeed learns from a group's measured steps how many seconds it needs per predicted operation. Pure.
#pragma once

#include <map>

#include "server/scheduling/shape_class.h"

namespace tessera::server {

// Keeps an exponentially weighted mean for each shape class, and one over all classes for those not seen yet.
class LearnedSpeed final {
 public:
  explicit LearnedSpeed(double initial_seconds_per_flop)
      : initial_(initial_seconds_per_flop), overall_(initial_seconds_per_flop) {}

  // Ignores observations that are not positive and finite.
  void Observe(const ShapeClass& shape, double flops, double seconds);

  double SecondsPerFlop(const ShapeClass& shape) const;
  // Returns whether enough steps of this class were seen to rely on its mean.
  bool Knows(const ShapeClass& shape) const;
  double SecondsPerFlop() const { return overall_; }

  // Returns a lower bound of the seconds per operation for this class, so that a prediction by it is never too long.
  // For a class that was seen often enough, it is that of its fastest step. For another class, it is that of the
  // fastest step of all under much better device use, and at most the speed assumed at the start. Before the first step
  // it is `unseen`.
  double LeastSecondsPerFlop(const ShapeClass& shape, double unseen) const;

 private:
  struct Class {
    double mean = 0;
    double fastest = 0;
    int steps = 0;  // counted up to kOftenEnough
  };

  double initial_;
  double overall_;
  double fastest_ = 0;
  bool seen_ = false;
  std::map<ShapeClass, Class> of_class_;
};

}  // namespace tessera::server
