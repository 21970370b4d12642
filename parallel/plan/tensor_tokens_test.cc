#include "parallel/plan/tensor_tokens.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tessera::parallel {
namespace {

TEST(TensorTokensTest, EveryRowHasOneOwnerAndPartsDifferByOneAtMost) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (int64_t count = 0; count < 12; ++count) {
      const TensorTokens tokens(count, count, ranks);
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const TokenSpan own = tokens.Image(rank);
        EXPECT_EQ(own.begin, next);
        EXPECT_EQ(own.count(), tokens.image()[static_cast<size_t>(rank)]);
        EXPECT_LE(own.count() - count / ranks, 1);
        EXPECT_GE(own.count() - count / ranks, 0);
        // In total no rank has two rows more than another.
        EXPECT_LE(own.count() + tokens.text()[static_cast<size_t>(rank)], (2 * count + ranks - 1) / ranks);
        next = own.end;
      }
      EXPECT_EQ(next, count);
      EXPECT_EQ(std::accumulate(tokens.text().begin(), tokens.text().end(), int64_t{0}), count);
    }
  }
}

TEST(TensorTokensTest, JoinedRowsAreRunsInTheirOrder) {
  const TensorTokens tokens(5, 3, 2);
  using Runs = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(tokens.Runs(TokenRows::kImage), (Runs{{3, 2}}));
  EXPECT_EQ(tokens.Runs(TokenRows::kText), (Runs{{1, 2}}));
  EXPECT_EQ(tokens.Runs(TokenRows::kTextThenImage), (Runs{{1, 2}, {3, 2}}));
  EXPECT_EQ(tokens.Runs(TokenRows::kImageThenText), (Runs{{3, 2}, {1, 2}}));
}

}  // namespace
}  // namespace tessera::parallel
