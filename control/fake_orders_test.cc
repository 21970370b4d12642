#include "control/fake_orders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::HasSubstr;

FakeOrders Read(const std::string& text, int64_t rank = 0) {
  const absl::StatusOr<FakeOrders> orders = FakeOrders::Read(text, rank);
  EXPECT_TRUE(orders.ok()) << orders.status();
  return orders.value_or(FakeOrders());
}

TEST(FakeOrders, AreReadByName) {
  const FakeOrders orders = Read("step-time=20  any-model gate=/a=b salt=7");
  EXPECT_EQ(orders.Time("step-time"), absl::Milliseconds(20));
  EXPECT_TRUE(orders.Has("any-model"));
  EXPECT_FALSE(orders.Has("mute"));
  EXPECT_EQ(orders.Text("gate"), "/a=b");
  EXPECT_EQ(orders.Number("salt"), 7);
  EXPECT_EQ(orders.Time("load-time"), absl::ZeroDuration());
}

TEST(FakeOrders, OfOneNameTheFirstCounts) { EXPECT_EQ(Read("salt=1 salt=2").Number("salt"), 1); }

TEST(FakeOrders, ForARankReachThatRankAlone) {
  EXPECT_TRUE(Read("rank1:mute", 1).Has("mute"));
  EXPECT_FALSE(Read("rank1:mute", 0).Has("mute"));
}

TEST(FakeOrders, ForAPromptReachJobsWithThatPromptAlone) {
  const FakeOrders orders = Read("step2=die step2-of-[fail]=error");
  EXPECT_EQ(orders.Fault("step2", "[fail]"), "error");
  EXPECT_EQ(orders.Fault("step2", "apple"), "die");
  EXPECT_EQ(orders.Fault("step3", "[fail]"), "");
}

TEST(FakeOrders, ThatNobodyUnderstandsAreRefusedByName) {
  for (const std::string order :
       {"stpe-time=5", "step-time=", "step-time=-1",  "step-time=60001", "step-time=1e3", "step0=error",
        "step=error",  "start",      "start=explode", "decode=warn",     "mute=1",        "gate=",
        "when=",       "rank:mute",  "rankX:mute",    "rank-1:mute",     "error-every=0", "salt=99999999999",
        "=5",          "exit=256",   "memory=0",      "memory-free="}) {
    const absl::StatusOr<FakeOrders> orders = FakeOrders::Read("salt=1 " + order, 0);
    EXPECT_EQ(orders.status().code(), absl::StatusCode::kInvalidArgument) << order;
    EXPECT_THAT(std::string(orders.status().message()), HasSubstr("'" + order + "'"));
  }
}

TEST(FakeOrders, OfOtherRanksAreCheckedToo) { EXPECT_FALSE(FakeOrders::Read("rank3:stpe=1", 0).ok()); }

}  // namespace
}  // namespace tessera
