// How long a group takes for predicted operations, learned from the steps that it has made. Pure.
#pragma once

#include <map>

#include "server/scheduling/cost_model.h"

namespace tessera::server {

// An exponentially weighted mean for each shape class, and one over all of them for classes not seen yet.
class LearnedSpeed final {
 public:
  explicit LearnedSpeed(double initial_seconds_per_flop)
      : initial_(initial_seconds_per_flop), overall_(initial_seconds_per_flop) {}

  // Observations that are no positive finite numbers are ignored.
  void Observe(const ShapeClass& shape, double flops, double seconds);

  double SecondsPerFlop(const ShapeClass& shape) const;
  // Whether steps of this class were seen often enough to rely on it.
  bool Knows(const ShapeClass& shape) const;
  double SecondsPerFlop() const { return overall_; }

  // What steps of this class take at the least, so that what takes too long by it certainly does. Of a class that was
  // seen often enough: its fastest step. Of another: the fastest step of all, much better used still, and never less
  // than the speed that is assumed at the start. Before any step was seen: `unseen`.
  double LeastSecondsPerFlop(const ShapeClass& shape, double unseen) const;

 private:
  struct Class {
    double mean = 0;
    double fastest = 0;
    int steps = 0;  // counted up to what is often enough
  };

  double initial_;
  double overall_;
  double fastest_ = 0;
  bool seen_ = false;
  std::map<ShapeClass, Class> of_class_;
};

}  // namespace tessera::server
