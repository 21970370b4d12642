#include "parallel/functional.h"

#include <c10/util/irange.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/gradient_error.h"

namespace tessera::parallel {
namespace {

using ::testing::TestWithParam;
using ::testing::Values;

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
  EXPECT_TRUE(TakeShard(x, 1, {2}, one).is_same(x));
  EXPECT_TRUE(GatherTokens(x, {{2}}, one).is_same(x));
  EXPECT_TRUE(ScatterTokens(x, {{2}}, one).is_same(x));
  EXPECT_TRUE(PartsToRows(x, {2}, one).is_alias_of(x));
  EXPECT_TRUE(RowsToParts(x, {1}, one).is_alias_of(x));
}

class FunctionalRanksTest : public TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, FunctionalRanksTest, Values(2, 3, 4));

TEST_P(FunctionalRanksTest, CopyToGroupHasTheGradientOfAReplicatedTensor) {
  const std::vector<at::Tensor> xs(ranks(), Random({2, 3}, 1));
  EXPECT_LT(GradientError(xs, true, [](const at::Tensor& x, Communicator& group) { return CopyToGroup(x, group); }),
            kGradientTolerance);
}

// The result is replicated, so the loss counts on one rank only.
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
    EXPECT_LT(GradientError(xs, false, gather), kGradientTolerance);
  }
}

TEST_P(FunctionalRanksTest, TakeShardGivesOwnRowsAndHasTheGradientOfAReplicatedTensor) {
  const std::vector<int64_t> rows = UnevenRows(ranks());
  const std::vector<at::Tensor> xs(ranks(), Random({2, Total(rows)}, 7));
  const Functional take = [&](const at::Tensor& x, Communicator& group) { return TakeShard(x, 1, rows, group); };
  RunRanks(ranks(), [&](ThreadRank& rank) {
    EXPECT_TRUE(at::equal(take(xs[0], rank.world()), RankParts(xs[0], rows, 1)[rank.rank()]));
  });
  EXPECT_LT(GradientError(xs, true, take), kGradientTolerance);
}

// Two runs, of which some ranks hold no tokens.
TEST_P(FunctionalRanksTest, GatherTokensJoinsRunsAndScatterTokensUndoesIt) {
  const TokenRuns runs = {UnevenRows(ranks()), std::vector<int64_t>(ranks(), 2)};
  const auto own = [&](int rank) { return Random({2, runs[0][rank] + runs[1][rank], 3}, rank); };
  std::vector<at::Tensor> whole;
  for (size_t run = 0; run < runs.size(); ++run) {
    for (const int rank : c10::irange(ranks())) {
      whole.push_back(own(rank).narrow(1, run == 0 ? 0 : runs[0][rank], runs[run][rank]));
    }
  }
  const Functional gather = [&](const at::Tensor& x, Communicator& group) { return GatherTokens(x, runs, group); };
  const Functional scatter = [&](const at::Tensor& x, Communicator& group) { return ScatterTokens(x, runs, group); };
  RunRanks(ranks(), [&](ThreadRank& rank) {
    const at::Tensor all = gather(own(rank.rank()), rank.world());
    EXPECT_TRUE(at::equal(all, at::cat(whole, 1)));
    EXPECT_LT((scatter(all, rank.world()) - own(rank.rank()) * ranks()).abs().max().item<double>(), 1e-14);
  });
  EXPECT_LT(GradientError(OnePerRank(ranks(), own), false, gather), kGradientTolerance);
  const std::vector<at::Tensor> sums = OnePerRank(ranks(), [&](int r) {
    return Random({1, Total(runs[0]) + Total(runs[1]), 2}, r);
  });
  EXPECT_LT(GradientError(sums, false, scatter), kGradientTolerance);
}

// Each rank has its own weight and bias, as with outputs split over ranks.
TEST_P(FunctionalRanksTest, GatheredProductIsThatOfGatheredTokensWithItsGradients) {
  const TokenRuns runs = {UnevenRows(ranks()), std::vector<int64_t>(ranks(), 1)};
  RunRanks(ranks(), [&](ThreadRank& rank) {
    const auto gradients = [&](bool keeps) {
      const at::Tensor x = Random({2, runs[0][rank.rank()] + 1, 3}, rank.rank()).requires_grad_(true),
                       weight = Random({4, 3}, 10 + rank.rank()).requires_grad_(true),
                       bias = Random({4}, 20 + rank.rank()).requires_grad_(true);
      const at::Tensor y = keeps ? at::linear(GatherTokens(x, runs, rank.world()), weight, bias)
                                 : GatheredProduct(x, weight, bias, runs, rank.world());
      Loss(y, rank.rank()).backward();
      return std::vector<at::Tensor>{y.detach(), x.grad(), weight.grad(), bias.grad()};
    };
    const std::vector<at::Tensor> expected = gradients(true), actual = gradients(false);
    for (const size_t i : c10::irange(expected.size())) {
      EXPECT_LT((actual[i] - expected[i]).abs().max().item<double>(), 1e-13) << i;
    }
  });
}

TEST_P(FunctionalRanksTest, PartsToRowsGivesOwnPartOfAllRowsAndHasTheirGradient) {
  const std::vector<int64_t> rows = UnevenRows(ranks());
  const std::vector<at::Tensor> xs = OnePerRank(ranks(), [&](int r) { return Random({ranks(), rows[r], 2}, r); });
  const Functional exchange = [&](const at::Tensor& x, Communicator& group) { return PartsToRows(x, rows, group); };
  RunRanks(ranks(), [&](ThreadRank& rank) {
    std::vector<at::Tensor> own;
    for (const at::Tensor& x : xs) own.push_back(x[rank.rank()]);
    EXPECT_TRUE(at::equal(exchange(xs[rank.rank()], rank.world()), at::cat(own)));
  });
  EXPECT_LT(GradientError(xs, false, exchange), kGradientTolerance);
}

TEST_P(FunctionalRanksTest, RowsToPartsUndoesPartsToRowsAndHasItsGradient) {
  const std::vector<int64_t> rows = UnevenRows(ranks());
  RunRanks(ranks(), [&](ThreadRank& rank) {
    const at::Tensor x = Random({ranks(), rows[rank.rank()], 2, 3}, rank.rank());
    EXPECT_TRUE(at::equal(RowsToParts(PartsToRows(x, rows, rank.world()), rows, rank.world()), x));
  });
  const std::vector<at::Tensor> xs = OnePerRank(ranks(), [&](int r) { return Random({Total(rows), 1, 2}, r); });
  const Functional exchange = [&](const at::Tensor& x, Communicator& group) { return RowsToParts(x, rows, group); };
  EXPECT_LT(GradientError(xs, false, exchange), kGradientTolerance);
}

TEST_P(FunctionalRanksTest, NoGraphIsMadeWhereNoGradientIsAskedFor) {
  RunRanks(ranks(), [&](ThreadRank& rank) {
    const std::vector<int64_t> rows(ranks(), 2);
    const at::Tensor x = Random({ranks(), 2, 1}, 0).requires_grad_(true);
    {
      const c10::InferenceMode inference;
      EXPECT_TRUE(CopyToGroup(x, rank.world()).is_same(x));
      EXPECT_TRUE(GatherDim(x, 1, rows, rank.world()).is_inference());
      EXPECT_TRUE(PartsToRows(x, rows, rank.world()).is_inference());
    }
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(SumOverGroup(x, rank.world()).requires_grad());
  });
}

}  // namespace
}  // namespace tessera::parallel
