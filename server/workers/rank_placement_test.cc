#include "server/workers/rank_placement.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

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

// Returns a host with `gpus` GPUs. Blocks of `linked` GPUs have NVLink, and blocks of `of_socket` GPUs share a socket.
control::HostTopology Host(size_t gpus, size_t linked, size_t of_socket) {
  control::HostTopology host;
  for (size_t i = 0; i < gpus; ++i) {
    host.gpus.push_back({.uuid = absl::StrCat("GPU-", i, "0000000-0000-0000-0000-000000000000")});
    for (size_t j = 0; j < gpus; ++j) {
      host.links.push_back(i / linked == j / linked         ? control::GpuLink::kNvlink
                           : i / of_socket == j / of_socket ? control::GpuLink::kPcieSwitch
                                                            : control::GpuLink::kPcieSockets);
    }
  }
  return host;
}

TEST(NearRanksTest, AreThoseOverTheFasterLinks) {
  EXPECT_EQ(NearRanks("cuda", 8, Host(8, 2, 8)), 2);
  EXPECT_EQ(NearRanks("cuda", 8, Host(8, 1, 4)), 4);
  EXPECT_EQ(NearRanks("cuda", 8, Host(8, 2, 4)), 4) << "the largest that are nearer than the farthest";
  EXPECT_EQ(NearRanks("cuda", 4, Host(8, 2, 4)), 2);
  EXPECT_EQ(NearRanks("cuda:4,cuda:5,cuda:0,cuda:1", 4, Host(8, 2, 8)), 2);
  const std::string by_name =
      "GPU-00000000-0000-0000-0000-000000000000,GPU-10000000-0000-0000-0000-000000000000,cuda:2,cuda:3";
  EXPECT_EQ(NearRanks(by_name, 4, Host(4, 2, 4)), 2);
}

TEST(NearRanksTest, NoneAreWhereAllAreEqualOrUnknown) {
  EXPECT_EQ(NearRanks("cuda", 8, Host(8, 8, 8)), std::nullopt);
  EXPECT_EQ(NearRanks("cuda", 4, Host(8, 1, 8)), std::nullopt);
  EXPECT_EQ(NearRanks("cuda", 2, Host(2, 1, 1)), std::nullopt);
  EXPECT_EQ(NearRanks("cuda:0,cuda:2,cuda:1,cuda:3", 4, Host(4, 2, 4)), std::nullopt) << "not those that follow";
  EXPECT_EQ(NearRanks("cuda:0,cuda:1,cuda:2", 3, Host(4, 2, 4)), std::nullopt) << "no equal blocks";
  EXPECT_EQ(NearRanks("cuda:0,cuda:1", 4, Host(4, 2, 4)), std::nullopt) << "the list has another length";
  EXPECT_EQ(NearRanks("cuda", 4, control::HostTopology{}), std::nullopt);
  EXPECT_EQ(NearRanks("cpu", 4, Host(4, 2, 4)), std::nullopt);
  control::HostTopology host = Host(8, 2, 4);
  host.knows_nvlink = false;
  EXPECT_EQ(NearRanks("cuda", 8, host), std::nullopt);
}

TEST(NearRanksTest, AHostsRanksAreNearerThanThoseOfAnother) {
  EXPECT_EQ(NearRanks("a/cuda:0,a/cuda:1,b/cuda:0,b/cuda:1", 4, {}), 2);
  EXPECT_EQ(NearRanks("a/cpu:0,a/cpu:1,a/cpu:2,b/cpu:0,b/cpu:1,b/cpu:2", 6, {}), 3);
  EXPECT_EQ(NearRanks("cuda:0,cuda:1,cuda:2,cuda:3,b/cuda:0,b/cuda:1,b/cuda:2,b/cuda:3", 8, Host(4, 2, 4)), 4);
  EXPECT_EQ(NearRanks("a/cuda:0,b/cuda:0,a/cuda:1,b/cuda:1", 4, {}), 2) << "as PlaceRanks puts them";
  EXPECT_EQ(NearRanks("a/cuda:0,b/cuda:0", 2, {}), std::nullopt);
}

}  // namespace
}  // namespace tessera::server
