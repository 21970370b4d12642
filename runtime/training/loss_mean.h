// LossMean is the running mean of a run's losses: the mean of the first hundred, after which each new loss has a weight
// of one hundredth.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera::runtime {

struct LossMean {
  static constexpr int64_t kWindow = 100;

  double mean = 0;
  int64_t count = 0;  // number of losses added

  // Returns the ratio of a finite loss to the mean; 0 if there is no mean yet or it is 0.
  double RatioOf(double loss) const { return count > 0 && mean > 0 ? loss / mean : 0; }
  void Add(double loss) {
    ++count;
    mean += (loss - mean) / static_cast<double>(std::min(count, kWindow));
  }
};

}  // namespace tessera::runtime
