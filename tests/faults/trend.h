// Decides whether sampled values of a running program grow or only fluctuate.
#pragma once

#include <vector>

namespace tessera {

struct Sample {
  double seconds = 0;  // time of the sample, ascending
  double value = 0;
};

struct Trend {
  double slope = 0;            // per second
  double least = 0, most = 0;  // three standard deviations below and above the slope
  double level = 0;            // the median of all samples
  double seconds = 0;          // from the first sample to the last

  // Returns whether the value certainly rises, and by more than `resolution` in the sampled time.
  bool Grows(double resolution) const { return least > 0 && slope * seconds > resolution; }
};

inline constexpr int kTrendBlocks = 20;

// Returns the median slope between the medians of equal blocks of samples, with Sen's interval (P. K. Sen, Estimates of
// the regression coefficient based on Kendall's tau, 1968). It assumes nothing about the noise and ignores single
// peaks. Needs at least two samples for each of kTrendBlocks blocks.
Trend TrendOf(const std::vector<Sample>& samples);

}  // namespace tessera
