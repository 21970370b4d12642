#include <gtest/gtest.h>

#include "tests/support/low_rank_runs.h"

namespace tessera::models {
namespace {

class LowRankTest : public testing::TestWithParam<int> {};

// fp64 and sums of at most 16 products: a few roundings.
TEST_P(LowRankTest, OutputsAndGradientsOfShardedFactorsAreThoseOfOneRank) {
  EXPECT_LE(LowRankRuns::WorstError(GetParam()), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Ranks, LowRankTest, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace tessera::models
