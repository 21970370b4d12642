#include "server/workers/rank_placement.h"

#include <gtest/gtest.h>

namespace tessera::server {
namespace {

std::string Placed(const char* layout, const std::string& devices) {
  return PlaceRanks(*parallel::ParseLayout(layout), devices);
}

TEST(RankPlacementTest, RanksThatExchangeMostAreOnOneHost) {
  EXPECT_EQ(Placed("cfg=2,ulysses=2", "a/cpu:0,b/cpu:0,a/cpu:1,b/cpu:1"), "a/cpu:0,a/cpu:1,b/cpu:0,b/cpu:1");
  EXPECT_EQ(Placed("pipe=2,tensor=2", "b/cuda:0,b/cuda:1,a/cuda:0,a/cuda:1"), "b/cuda:0,b/cuda:1,a/cuda:0,a/cuda:1");
}

TEST(RankPlacementTest, WholeGroupsComeBeforeThoseThatMustSpanHosts) {
  EXPECT_EQ(Placed("cfg=2,ulysses=3", "a/cpu:0,a/cpu:1,a/cpu:2,a/cpu:3,b/cpu:0,b/cpu:1"),
            "a/cpu:0,a/cpu:1,a/cpu:2,a/cpu:3,b/cpu:0,b/cpu:1");
  EXPECT_EQ(Placed("pipe=3,ulysses=2", "a/cpu:0,a/cpu:1,a/cpu:2,b/cpu:0,b/cpu:1,b/cpu:2"),
            "a/cpu:0,a/cpu:1,b/cpu:0,b/cpu:1,a/cpu:2,b/cpu:2");
}

TEST(RankPlacementTest, DevicesOfThisHostStayAsTheyAre) {
  EXPECT_EQ(Placed("ulysses=2", "cuda:1,cuda:0"), "cuda:1,cuda:0");
  EXPECT_EQ(Placed("ulysses=2", "cpu"), "cpu");
}

TEST(RankPlacementTest, ThisHostIsOneOfTheHosts) {
  EXPECT_EQ(Placed("cfg=2,ulysses=2", "cpu,b/cpu:0,cpu,b/cpu:1"), "cpu,cpu,b/cpu:0,b/cpu:1");
}

}  // namespace
}  // namespace tessera::server
