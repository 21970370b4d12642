#include "parallel/plan/stage_balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace tessera::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

double Dearest(const std::vector<double>& costs, const std::vector<int>& bounds) {
  double dearest = 0;
  for (size_t s = 1; s < bounds.size(); ++s) {
    dearest = std::max(dearest, std::accumulate(costs.begin() + bounds[s - 1], costs.begin() + bounds[s], 0.0));
  }
  return dearest;
}

// Returns the optimum over every partition of `costs` into `stages` runs, by trying them all.
double CheapestDearest(const std::vector<double>& costs, int stages, std::vector<int> bounds = {0}) {
  const int blocks = static_cast<int>(costs.size());
  if (stages == 1) {
    bounds.push_back(blocks);
    return Dearest(costs, bounds);
  }
  double cheapest = std::numeric_limits<double>::infinity();
  for (int end = bounds.back() + 1; end <= blocks - stages + 1; ++end) {
    std::vector<int> next = bounds;
    next.push_back(end);
    cheapest = std::min(cheapest, CheapestDearest(costs, stages - 1, next));
  }
  return cheapest;
}

TEST(BalanceStagesTest, NoPartitionHasACheaperDearestStage) {
  uint32_t state = 1;
  for (int blocks = 1; blocks <= 9; ++blocks) {
    for (int round = 0; round < 20; ++round) {
      std::vector<double> costs;
      for (int b = 0; b < blocks; ++b) {
        state = state * 1664525 + 1013904223;
        costs.push_back(static_cast<double>(state >> 28));  // 0 … 15, so that there are ties
      }
      for (int stages = 1; stages <= blocks; ++stages) {
        const std::vector<int> bounds = *BalanceStages(costs, stages);
        ASSERT_EQ(bounds.size(), static_cast<size_t>(stages) + 1);
        ASSERT_EQ(bounds.front(), 0);
        ASSERT_EQ(bounds.back(), blocks);
        ASSERT_TRUE(std::ranges::adjacent_find(bounds, std::greater_equal<int>()) == bounds.end());
        ASSERT_EQ(Dearest(costs, bounds), CheapestDearest(costs, stages));
      }
    }
  }
}

TEST(BalanceStagesTest, CostsDecideAndNotTheNumberOfBlocks) {
  EXPECT_THAT(*BalanceStages(std::vector<double>{4, 4, 1, 1, 1, 1, 1, 1, 1, 1}, 2), ElementsAre(0, 2, 10));
}

TEST(BalanceStagesTest, BlocksWithoutCostAreDealtOutToo) {
  EXPECT_THAT(*BalanceStages(std::vector<double>{0, 0, 0}, 3), ElementsAre(0, 1, 2, 3));
}

TEST(BalanceStagesTest, RefusesMoreStagesThanBlocks) {
  EXPECT_THAT(BalanceStages(std::vector<double>{1, 1}, 3).status().message(),
              HasSubstr("the number of stages is 3; valid values are 1 to the number of blocks, 2"));
  EXPECT_FALSE(BalanceStages(std::vector<double>{1}, 0).ok());
  EXPECT_FALSE(BalanceStages({}, 1).ok());
}

TEST(BalanceStagesTest, RefusesCostsThatAreNoNumbers) {
  for (const double cost : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(BalanceStages(std::vector<double>{1, cost}, 2).status().message(), HasSubstr("the cost of block 1 is"));
  }
}

// Computed by hand with width 2, 3 image tokens, 5 text tokens; the MLP has 32 weights, a square matrix 4.
TEST(TokenFlopsTest, CountsProductsAndAttention) {
  const auto flops = [](const BlockCost& block) { return FlopsOf(block).Total(3, 5); };
  EXPECT_EQ(flops({BlockKind::kImage, 2}), 2 * 3 * (16 + 32) + 8 * 9);
  EXPECT_EQ(flops({BlockKind::kCross, 2}), 2 * (3 * (16 + 32 + 8) + 5 * 8) + 8 * (9 + 15));
  EXPECT_EQ(flops({BlockKind::kJoint, 2}), 2 * 8 * (16 + 32) + 8 * 64);
  EXPECT_EQ(flops({.kind = BlockKind::kImage, .width = 2, .long_skip = true}), 2 * 3 * (16 + 32 + 8) + 8 * 9);
  EXPECT_EQ(flops({.kind = BlockKind::kJoint, .width = 2, .second_attention = true}),
            2 * (8 * (16 + 32) + 3 * 16) + 8 * (64 + 9));
}

TEST(TokenFlopsTest, OfSeveralBlocksAreTheirSum) {
  TokenFlops sum = FlopsOf({BlockKind::kCross, 2});
  sum += FlopsOf({BlockKind::kJoint, 3});
  EXPECT_EQ(sum.Total(3, 5), FlopsOf({BlockKind::kCross, 2}).Total(3, 5) + FlopsOf({BlockKind::kJoint, 3}).Total(3, 5));
  EXPECT_EQ(sum.Total(3, 5), sum.Products(3, 5) + sum.Attention(3, 5));
}

}  // namespace
}  // namespace tessera::parallel
