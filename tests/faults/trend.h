// Whether something that is sampled while a program runs grows, or only moves about.
#pragma once

#include <vector>

namespace tessera {

struct Sample {
  double seconds = 0;  // later than that of the sample before
  double value = 0;
};

struct Trend {
  double slope = 0;            // per second
  double least = 0, most = 0;  // that the slope may be, three standard deviations either way
  double level = 0;            // the median of all samples
  double seconds = 0;          // between the first and the last

  // It is sure to rise, and rises by more than `resolution` in the time that was sampled.
  bool Grows(double resolution) const { return least > 0 && slope * seconds > resolution; }
};

inline constexpr int kTrendBlocks = 20;

// The median slope between the medians of equal blocks of samples, and Sen's interval for it (P. K. Sen, Estimates of
// the regression coefficient based on Kendall's tau, 1968): nothing is assumed of the noise, and single peaks do not
// count. At least two samples for each of kTrendBlocks blocks.
Trend TrendOf(const std::vector<Sample>& samples);

}  // namespace tessera
