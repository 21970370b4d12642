#include "parallel/functional.h"

#include <c10/util/irange.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/planted.h"
#include "parallel/host/thread_ranks.h"

namespace tessera {
namespace {

using ::testing::TestWithParam;
using ::testing::Values;

// What a functional does with this rank's tensor.
using Functional = std::function<at::Tensor(const at::Tensor&, Communicator&)>;

at::Tensor Random(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kDouble);
}

// A loss of which every element of `y` has a share of its own, different on each rank.
at::Tensor Loss(const at::Tensor& y, int rank) { return (y * y * Random(y.sizes(), 1000 + rank)).sum(); }

// The sum of the ranks' losses, every rank's `x` given.
double SumOfLosses(const std::vector<at::Tensor>& xs, const Functional& functional) {
  std::vector<double> losses(xs.size());
  RunRanks(static_cast<int>(xs.size()), [&](ThreadRank& rank) {
    losses[rank.rank()] = Loss(functional(xs[rank.rank()], rank.world()), rank.rank()).item<double>();
  });
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

std::vector<at::Tensor> Gradients(const std::vector<at::Tensor>& xs, const Functional& functional) {
  std::vector<at::Tensor> gradients(xs.size());
  RunRanks(static_cast<int>(xs.size()), [&](ThreadRank& rank) {
    const at::Tensor x = xs[rank.rank()].clone().requires_grad_(true);
    Loss(functional(x, rank.world()), rank.rank()).backward();
    gradients[rank.rank()] = x.grad();
  });
  return gradients;
}

// The largest difference between the gradients and central differences of the summed loss. `replicated`: all ranks hold
// one tensor, which is moved on all of them together.
double GradientError(const std::vector<at::Tensor>& xs, bool replicated, const Functional& functional) {
  const double step = 1e-5;
  const std::vector<at::Tensor> gradients = Gradients(xs, functional);
  double worst = 0;
  for (const size_t r : c10::irange(replicated ? size_t{1} : xs.size()))
    for (const int64_t i : c10::irange(xs[r].numel())) {
      const auto loss_at = [&](double shift) {
        std::vector<at::Tensor> moved = xs;
        for (const size_t other : c10::irange(xs.size())) {
          if (!replicated && other != r) continue;
          moved[other] = xs[other].clone();
          moved[other].view(-1)[i] += shift;
        }
        return SumOfLosses(moved, functional);
      };
      const double difference = (loss_at(step) - loss_at(-step)) / (2 * step);
      for (const size_t other : c10::irange(xs.size()))
        if (replicated || other == r)
          worst = std::max(worst, std::abs(difference - gradients[other].view(-1)[i].item<double>()));
    }
  return worst;
}

// Central differences with this step are good to 1e-10 of the loss's second derivative, and rounding to 1e-10.
constexpr double kTolerance = 1e-7;

std::vector<at::Tensor> OnePerRank(int ranks, const std::function<at::Tensor(int)>& make) {
  std::vector<at::Tensor> tensors;
  for (const int r : c10::irange(ranks)) tensors.push_back(make(r));
  return tensors;
}

#ifndef TESSERA_PLANTED_BUGS

std::vector<int64_t> UnevenRows(int ranks) {
  std::vector<int64_t> rows = {3, 1, 0, 2};
  rows.resize(ranks);
  return rows;
}

int64_t Total(const std::vector<int64_t>& rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

TEST(FunctionalTest, AGroupOfOneReturnsItsArgument) {
  SingleRank one;
  const at::Tensor x = Random({1, 2, 3, 4}, 0).requires_grad_(true);
  EXPECT_TRUE(CopyToGroup(x, one).is_same(x));
  EXPECT_TRUE(SumOverGroup(x, one).is_same(x));
  EXPECT_TRUE(GatherDim(x, 1, {2}, one).is_same(x));
  EXPECT_TRUE(ScatterSum(x, 1, {2}, one).is_same(x));
  EXPECT_TRUE(TakeShard(x, 1, {2}, one).is_same(x));
  EXPECT_TRUE(TokensToHeads(x, {2}, one).is_same(x));
  EXPECT_TRUE(HeadsToTokens(x, {2}, one).is_same(x));
  EXPECT_TRUE(RingShift(x, 0, {2}, one).is_same(x));
}

class FunctionalRanksTest : public TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, FunctionalRanksTest, Values(2, 3, 4));

TEST_P(FunctionalRanksTest, CopyToGroupHasTheGradientOfAReplicatedTensor) {
  const std::vector<at::Tensor> xs(ranks(), Random({2, 3}, 1));
  EXPECT_LT(GradientError(xs, true, [](const at::Tensor& x, Communicator& group) { return CopyToGroup(x, group); }),
            kTolerance);
}

// Its result is replicated, so the loss counts on one rank alone.
TEST_P(FunctionalRanksTest, SumOverGroupHasTheGradientOfALossThatCountsOnce) {
  const std::vector<at::Tensor> xs = OnePerRank(ranks(), [](int r) { return Random({2, 3}, r); });
  at::Tensor whole = at::zeros({2, 3}, at::kDouble);
  for (const at::Tensor& x : xs) whole += x;
  RunRanks(ranks(), [&](ThreadRank& rank) {
    const at::Tensor x = xs[rank.rank()].clone().requires_grad_(true);
    const at::Tensor sum = SumOverGroup(x, rank.world());
    EXPECT_LT((sum.detach() - whole).abs().max().item<double>(), 1e-14);
    (sum * sum).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), sum.detach() * 2));
  });
}

TEST_P(FunctionalRanksTest, GatherDimJoinsUnevenRowsAndHasTheirGradient) {
  for (const int64_t dim : {0, 1, -1}) {
    const std::vector<int64_t> rows = UnevenRows(ranks());
    const std::vector<at::Tensor> xs = OnePerRank(ranks(), [&](int r) {
      std::vector<int64_t> shape = {2, 2};
      shape[dim < 0 ? 1 : dim] = rows[r];
      return Random(shape, r);
    });
    const Functional gather = [&](const at::Tensor& x, Communicator& group) { return GatherDim(x, dim, rows, group); };
    RunRanks(ranks(), [&](ThreadRank& rank) {
      EXPECT_TRUE(at::equal(gather(xs[rank.rank()], rank.world()), at::cat(xs, dim)));
    });
    EXPECT_LT(GradientError(xs, false, gather), kTolerance);
  }
}

TEST_P(FunctionalRanksTest, ScatterSumGivesUnevenRowsOfTheSumAndHasTheirGradient) {
  const std::vector<int64_t> rows = UnevenRows(ranks());
  const std::vector<at::Tensor> xs = OnePerRank(ranks(), [&](int r) { return Random({2, Total(rows)}, r); });
  const Functional scatter = [&](const at::Tensor& x, Communicator& group) { return ScatterSum(x, 1, rows, group); };
  EXPECT_LT(GradientError(xs, false, scatter), kTolerance);
}

TEST_P(FunctionalRanksTest, TakeShardGivesOwnRowsAndHasTheGradientOfAReplicatedTensor) {
  const std::vector<int64_t> rows = UnevenRows(ranks());
  const std::vector<at::Tensor> xs(ranks(), Random({2, Total(rows)}, 7));
  const Functional take = [&](const at::Tensor& x, Communicator& group) { return TakeShard(x, 1, rows, group); };
  RunRanks(ranks(), [&](ThreadRank& rank) {
    EXPECT_TRUE(at::equal(take(xs[0], rank.world()), RankParts(xs[0], rows, 1)[rank.rank()]));
  });
  EXPECT_LT(GradientError(xs, true, take), kTolerance);
}

TEST_P(FunctionalRanksTest, TokensToHeadsGivesAllTokensOfOwnHeadsAndHasTheirGradient) {
  const std::vector<int64_t> rows = UnevenRows(ranks());
  const std::vector<at::Tensor> xs = OnePerRank(ranks(), [&](int r) { return Random({2, rows[r], ranks(), 1}, r); });
  const Functional exchange = [&](const at::Tensor& x, Communicator& group) { return TokensToHeads(x, rows, group); };
  const at::Tensor whole = at::cat(xs, 1);
  RunRanks(ranks(), [&](ThreadRank& rank) {
    EXPECT_TRUE(at::equal(exchange(xs[rank.rank()], rank.world()), whole.narrow(2, rank.rank(), 1)));
  });
  EXPECT_LT(GradientError(xs, false, exchange), kTolerance);
}

TEST_P(FunctionalRanksTest, HeadsToTokensUndoesTokensToHeadsAndHasItsGradient) {
  const std::vector<int64_t> rows = UnevenRows(ranks());
  RunRanks(ranks(), [&](ThreadRank& rank) {
    const at::Tensor x = Random({2, rows[rank.rank()], 2 * ranks(), 3}, rank.rank());
    EXPECT_TRUE(at::equal(HeadsToTokens(TokensToHeads(x, rows, rank.world()), rows, rank.world()), x));
  });
  const std::vector<at::Tensor> xs = OnePerRank(ranks(), [&](int r) { return Random({1, Total(rows), 1, 2}, r); });
  const Functional exchange = [&](const at::Tensor& x, Communicator& group) { return HeadsToTokens(x, rows, group); };
  EXPECT_LT(GradientError(xs, false, exchange), kTolerance);
}

TEST_P(FunctionalRanksTest, RingShiftPassesEveryOwnersTokensAndHasTheirGradient) {
  const std::vector<int64_t> rows = UnevenRows(ranks());
  const std::vector<at::Tensor> xs = OnePerRank(ranks(), [&](int r) { return Random({1, rows[r], 1, 2}, r); });
  RunRanks(ranks(), [&](ThreadRank& rank) {
    at::Tensor x = xs[rank.rank()];
    for (const int i : c10::irange(ranks())) {
      const int owner = (rank.rank() + ranks() - i) % ranks();
      EXPECT_TRUE(at::equal(x, xs[owner]));
      x = RingShift(x, owner, rows, rank.world());
    }
    EXPECT_TRUE(at::equal(x, xs[rank.rank()]));
  });
  const Functional twice = [&](const at::Tensor& x, Communicator& group) {
    const at::Tensor once = RingShift(x, group.rank(), rows, group);
    return RingShift(once, (group.rank() + ranks() - 1) % ranks(), rows, group);
  };
  EXPECT_LT(GradientError(xs, false, twice), kTolerance);
}

TEST_P(FunctionalRanksTest, NoGraphIsMadeWhereNoGradientIsAskedFor) {
  RunRanks(ranks(), [&](ThreadRank& rank) {
    const std::vector<int64_t> rows(ranks(), 2);
    const at::Tensor x = Random({1, 2, ranks(), 1}, 0).requires_grad_(true);
    {
      const c10::InferenceMode inference;
      EXPECT_TRUE(CopyToGroup(x, rank.world()).is_same(x));
      EXPECT_TRUE(GatherDim(x, 1, rows, rank.world()).is_inference());
      EXPECT_TRUE(TokensToHeads(x, rows, rank.world()).is_inference());
    }
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(SumOverGroup(x, rank.world()).requires_grad());
    EXPECT_FALSE(RingShift(x, rank.rank(), rows, rank.world()).requires_grad());
  });
}

TEST(FunctionalErrorsTest, NameHeadsThatDoNotDivide) {
  try {
    RunRanks(2, [](ThreadRank& rank) { TokensToHeads(at::zeros({1, 2, 3, 4}), {2, 2}, rank.world()); });
    FAIL() << "three heads were divided among two ranks";
  } catch (const c10::Error& error) {
    EXPECT_STREQ(error.what_without_backtrace(), "3 heads are not divisible among 2 ranks");
  }
}

#else

const char* planted = "";

}  // namespace
bool Planted(const char* bug) { return std::string_view(bug) == planted; }
namespace {

class PlantedTest : public ::testing::Test {
 protected:
  ~PlantedTest() override { planted = ""; }
};

const std::vector<int64_t> kRows = {3, 3, 1};

TEST_F(PlantedTest, AnUnevenLastShardThatIsDroppedIsNoticed) {
  const std::vector<at::Tensor> xs = OnePerRank(3, [](int r) { return Random({kRows[r], 2}, r); });
  const auto gathered = [&] {
    std::atomic<int> equal = 0;
    RunRanks(3, [&](ThreadRank& rank) {
      equal += at::equal(GatherDim(xs[rank.rank()], 0, kRows, rank.world()), at::cat(xs, 0));
    });
    return equal.load();
  };
  EXPECT_EQ(gathered(), 3);
  planted = "uneven_last_shard_dropped";
  EXPECT_EQ(gathered(), 0);
}

TEST_F(PlantedTest, AGradientThatIsNotSummedOverTheRanksIsNoticed) {
  const std::vector<at::Tensor> xs = OnePerRank(3, [](int r) { return Random({kRows[r], 2}, r); });
  const Functional gather = [](const at::Tensor& x, Communicator& group) { return GatherDim(x, 0, kRows, group); };
  EXPECT_LT(GradientError(xs, false, gather), kTolerance);
  planted = "gradient_of_gather_not_summed";
  EXPECT_GT(GradientError(xs, false, gather), 0.1);
}

TEST_F(PlantedTest, ASumThatDoesNotFollowTheRanksIsNoticed) {
  const auto differing = [] {
    std::vector<at::Tensor> sums(3);
    RunRanks(3, [&](ThreadRank& rank) {
      sums[rank.rank()] = Random({1000}, rank.rank());
      rank.world().AllReduceSum(sums[rank.rank()]);
    });
    return !at::equal(sums[0], sums[1]) || !at::equal(sums[0], sums[2]);
  };
  EXPECT_FALSE(differing());
  planted = "sum_starts_with_own_rank";
  EXPECT_TRUE(differing());
}

#endif

}  // namespace
}  // namespace tessera
