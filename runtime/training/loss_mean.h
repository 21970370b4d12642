// The running mean of a run's losses: of the first hundred the mean, then each new one counts a hundredth.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera::runtime {

struct LossMean {
  static constexpr int64_t kWindow = 100;

  double mean = 0;
  int64_t count = 0;  // losses in it

  // Of a finite loss to the mean; 0 where there is none yet, or it is 0.
  double RatioOf(double loss) const { return count > 0 && mean > 0 ? loss / mean : 0; }
  void Add(double loss) {
    ++count;
    mean += (loss - mean) / static_cast<double>(std::min(count, kWindow));
  }
};

}  // namespace tessera::runtime
