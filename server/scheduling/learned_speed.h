// How long a group takes for predicted operations, learned from the steps that it has made. Pure.
#pragma once

#include <map>

#include "server/scheduling/cost_model.h"

namespace tessera {

// An exponentially weighted mean for each shape class, and one over all of them for classes not seen yet.
class LearnedSpeed final {
 public:
  explicit LearnedSpeed(double initial_seconds_per_flop) : overall_(initial_seconds_per_flop) {}

  // Observations that are no positive finite numbers are ignored.
  void Observe(const ShapeClass& shape, double flops, double seconds);

  double SecondsPerFlop(const ShapeClass& shape) const;
  double SecondsPerFlop() const { return overall_; }

 private:
  double overall_;
  bool seen_ = false;
  std::map<ShapeClass, double> of_class_;
};

}  // namespace tessera
