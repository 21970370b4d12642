#include "tests/faults/trend.h"

#include <gtest/gtest.h>

#include <random>

namespace tessera {
namespace {

constexpr double kLevel = 60e6;  // bytes
constexpr double kResolution = kLevel / 100;

// Returns the memory of a busy server: noise that lasts for some time, and peaks.
std::vector<Sample> Samples(unsigned seed, double leaked) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0, kLevel / 500);
  std::vector<Sample> samples;
  double slow = 0;
  for (int i = 0; i < 600; ++i) {
    slow = 0.8 * slow + noise(random);
    const double peak = random() % 40 == 0 ? kLevel / 5 : 0;
    samples.push_back({.seconds = i + 0.5, .value = kLevel + slow + peak + leaked * i / 600});
  }
  return samples;
}

TEST(Trend, OfNoiseIsNotGrowth) {
  for (unsigned seed = 0; seed < 200; ++seed) EXPECT_FALSE(TrendOf(Samples(seed, 0)).Grows(kResolution)) << seed;
}

TEST(Trend, OfALeakOfATwentiethIsGrowth) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    EXPECT_TRUE(TrendOf(Samples(seed, kLevel / 20)).Grows(kResolution)) << seed;
  }
}

TEST(Trend, OfOneDescriptorLostAMinuteIsGrowth) {
  std::vector<Sample> samples;
  for (int second = 0; second < 360; ++second) {
    const int minute = second / 60;
    samples.push_back({second + 0.5, 50.0 + minute + second % 3});
  }
  const Trend trend = TrendOf(samples);
  EXPECT_TRUE(trend.Grows(2));
  EXPECT_NEAR(trend.slope, 1.0 / 60, 0.002);
  EXPECT_LE(trend.least, trend.slope);
  EXPECT_GE(trend.most, trend.slope);
}

TEST(Trend, OfWhatOnlyShrinksOrStandsIsNotGrowth) {
  std::vector<Sample> stands, shrinks;
  for (int second = 0; second < 100; ++second) {
    stands.push_back({second + 0.5, 7});
    shrinks.push_back({second + 0.5, 1000.0 - second});
  }
  EXPECT_FALSE(TrendOf(stands).Grows(0));
  EXPECT_FALSE(TrendOf(shrinks).Grows(0));
  EXPECT_EQ(TrendOf(stands).level, 7);
}

}  // namespace
}  // namespace tessera
