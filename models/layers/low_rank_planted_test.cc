#include <gtest/gtest.h>

#include "tests/support/low_rank_runs.h"
#include "tests/support/planted_bug.h"

namespace tessera::models {
namespace {

class PlantedLowRankTest : public testing::TestWithParam<const char*> {};

TEST_P(PlantedLowRankTest, IsFarBeyondTheTolerance) {
  const PlantedBug planted(GetParam());
  EXPECT_GT(LowRankRuns::WorstError(2), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Bugs, PlantedLowRankTest,
                         testing::Values("low_rank_gradient_not_summed", "low_rank_row_not_summed",
                                         "low_rank_row_bias_before_sum", "low_rank_up_not_sharded"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::models
