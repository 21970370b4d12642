#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "tests/support/gradient_error.h"
#include "tests/support/planted_bug.h"

namespace tessera::parallel {
namespace {

const std::vector<int64_t> kRows = {3, 3, 1};

TEST(PlantedFunctionalTest, AnUnevenLastShardThatIsDroppedIsNoticed) {
  const std::vector<at::Tensor> xs = OnePerRank(3, [](int r) { return Random({kRows[r], 2}, r); });
  const auto gathered = [&] {
    std::atomic<int> equal = 0;
    RunRanks(3, [&](ThreadRank& rank) {
      equal += at::equal(GatherDim(xs[rank.rank()], 0, kRows, rank.world()), at::cat(xs, 0));
    });
    return equal.load();
  };
  EXPECT_EQ(gathered(), 3);
  const PlantedBug planted("uneven_last_shard_dropped");
  EXPECT_EQ(gathered(), 0);
}

TEST(PlantedFunctionalTest, AGradientThatIsNotSummedOverTheRanksIsNoticed) {
  const std::vector<at::Tensor> xs = OnePerRank(3, [](int r) { return Random({kRows[r], 2}, r); });
  const Functional gather = [](const at::Tensor& x, Communicator& group) { return GatherDim(x, 0, kRows, group); };
  EXPECT_LT(GradientError(xs, false, gather), kGradientTolerance);
  const PlantedBug planted("gradient_of_gather_not_summed");
  EXPECT_GT(GradientError(xs, false, gather), 0.1);
}

TEST(PlantedFunctionalTest, ASumThatDoesNotFollowTheRanksIsNoticed) {
  const auto differing = [] {
    std::vector<at::Tensor> sums(3);
    RunRanks(3, [&](ThreadRank& rank) {
      sums[rank.rank()] = Random({1000}, rank.rank());
      rank.world().Sum(sums[rank.rank()], sums[rank.rank()]);
    });
    return !at::equal(sums[0], sums[1]) || !at::equal(sums[0], sums[2]);
  };
  EXPECT_FALSE(differing());
  const PlantedBug planted("sum_starts_with_own_rank");
  EXPECT_TRUE(differing());
}

}  // namespace
}  // namespace tessera::parallel
