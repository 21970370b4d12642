#include "runtime/engine/rank_rates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/thread_ranks.h"

namespace tessera::runtime {
namespace {

using ::testing::HasSubstr;

const RatedShape kSmall = {.dtype = at::kFloat, .width = 64, .heads = 4, .effort = 0.01};

void ExpectRates(const RankRates& rates) {
  for (const ComputeRates& compute : rates.compute) {
    for (const double rate :
         {compute.product_flops, compute.attention_flops, compute.memory_bytes_second, compute.operator_seconds}) {
      EXPECT_TRUE(std::isfinite(rate) && rate > 0) << rate;
    }
  }
}

TEST(RankRatesTest, OneRankHasNoRankToExchangeWith) {
  parallel::SingleRank alone;
  const RankRates rates = MeasureRankRates(kSmall, alone, alone);
  ASSERT_EQ(rates.compute.size(), 1u);
  EXPECT_FALSE(rates.exchange.has_value());
  ExpectRates(rates);
}

TEST(RankRatesTest, TwoRanksAreMeasuredAloneAndTogether) {
  RankRates rates;
  RunRanks(2, [&](ThreadRank& thread) {
    const RankRates measured = MeasureRankRates(kSmall, thread.world(), thread.world());
    if (thread.rank() == 0) rates = measured;
  });
  ASSERT_EQ(rates.compute.size(), 2u);
  EXPECT_EQ(rates.compute[0].busy, 1);
  EXPECT_EQ(rates.compute[1].busy, 2);
  ExpectRates(rates);
  ASSERT_TRUE(rates.exchange.has_value());
  for (const double rate : {rates.exchange->seconds, rates.exchange->bytes_second, rates.exchange->sum_bytes_second}) {
    EXPECT_TRUE(std::isfinite(rate) && rate > 0) << rate;
  }
  for (const char* field :
       {"\"busy\":2", "\"product_flops\":", "\"exchange\":{\"seconds\":", "\"sum_bytes_second\":"}) {
    EXPECT_THAT(JsonOf(rates), HasSubstr(field));
  }
}

}  // namespace
}  // namespace tessera::runtime
