#include "runtime/denoising/noise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/noise_correlation.h"

namespace tessera::runtime {
namespace {

using Block = std::array<uint32_t, 4>;

// The known answers published with the Random123 library.
TEST(PhiloxTest, GivesThePublishedAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(NoiseTest, AnyRangeOfIndicesGivesTheSameValuesAsTheWhole) {
  const NoiseKey key{.seed = 42};
  const std::vector<double> whole = Draw(key, 0, 101);
  for (const uint64_t first : {0, 1, 2, 50, 99, 100}) {
    const std::vector<double> part = Draw(key, first, 101 - first);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<int64_t>(first))) << first;
  }
}

TEST(NoiseTest, IsStandardNormal) {
  const size_t count = 1 << 20;
  double sum = 0, squares = 0, fourth = 0, beyond_two = 0;
  for (const double v : Draw({.seed = 7}, 0, count)) {
    sum += v, squares += v * v, fourth += v * v * v * v, beyond_two += std::abs(v) > 2;
  }
  const double n = static_cast<double>(count);
  // The bounds are five standard errors of each moment's estimate.
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(beyond_two / n, std::erfc(std::sqrt(2.0)), 5 * std::sqrt(0.0455 / n));
}

constexpr double kFiveErrors = 5.0 / 1024;

TEST(NoiseTest, SeedsPurposesAndStepsAreIndependent) {
  const NoiseKey key{.seed = 1, .purpose = NoisePurpose::kSampler, .step = 3};
  NoiseKey other = key;
  other.step = 4;
  EXPECT_LT(Correlation(key, other), kFiveErrors);
  other = key;
  other.purpose = NoisePurpose::kInitialLatents;
  EXPECT_LT(Correlation(key, other), kFiveErrors);
  other = key;
  other.seed = 2;
  EXPECT_LT(Correlation(key, other), kFiveErrors);
  other.seed = key.seed + (uint64_t{1} << 32);
  EXPECT_LT(Correlation(key, other), kFiveErrors);
}
}  // namespace
}  // namespace tessera::runtime
