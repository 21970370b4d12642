#include "runtime/device/nccl_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/support/made_up_host.h"

namespace tessera::runtime {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NcclLogTest : public testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}) unsetenv(name);
  }
};

// Opens and writes the log like NCCL.
void WriteAsNccl(const std::string& line) {
  static std::ofstream file;
  if (!file.is_open()) file.open(std::getenv("NCCL_DEBUG_FILE"));
  file << line << std::endl;
  EXPECT_TRUE(file.good());
}

TEST_F(NcclLogTest, WhatIsWrittenIsTakenOnce) {
  const NcclLog log;
  EXPECT_STREQ(std::getenv("NCCL_DEBUG"), "INFO");
  EXPECT_STREQ(std::getenv("NCCL_DEBUG_SUBSYS"), "INIT,NET");
  EXPECT_EQ(log.Take(), "");
  WriteAsNccl("one");
  EXPECT_EQ(log.Take(), "one\n");
  WriteAsNccl("host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM");
  const std::string later = log.Take().value();
  EXPECT_THAT(later, HasSubstr("via P2P"));
  EXPECT_TRUE(ReadNcclRoutes(later).peer_to_peer) << "behind a hole of zeros";
}

TEST_F(NcclLogTest, AUsersOwnVariablesStayAsTheyAre) {
  for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_FILE"}) {
    setenv(name, "/tmp/the-users", 1);
    const NcclLog log;
    EXPECT_EQ(log.Take(), std::nullopt) << name;
    EXPECT_STREQ(std::getenv(name), "/tmp/the-users");
    EXPECT_EQ(std::getenv("NCCL_DEBUG_SUBSYS"), nullptr);
    unsetenv(name);
  }
}

TEST_F(NcclLogTest, TheRoutesAreThoseOfItsChannels) {
  const std::string log =
      "node:10:20 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
      "node:10:20 [0] NCCL INFO Channel 00/24 :    0   1   2   3\n"
      "node:10:20 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct\n"
      "node:10:20 [0] NCCL INFO Channel 01/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA\n";
  EXPECT_EQ(ReadNcclRoutes(log), (NcclRoutes{.host_memory = true, .infiniband = true}));
  const struct {
    const char* via;
    NcclRoutes routes;
  } cases[] = {{"P2P/CUMEM/read", {.peer_to_peer = true}},
               {"P2P/direct pointer", {.peer_to_peer = true}},
               {"NET/Socket/0", {.sockets = true}},
               {"NET/AWS Libfabric/1(2)/GDRDMA", {.other_network = true}},
               {"NETWORK/IB/0", {}},
               {"", {}}};
  for (const auto& [via, routes] : cases) {
    EXPECT_EQ(ReadNcclRoutes(std::string("h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via ") + via), routes)
        << via;
  }
}

TEST_F(NcclLogTest, ALogOfAnythingHasNoRoutes) {
  EXPECT_EQ(ReadNcclRoutes(""), NcclRoutes());
  EXPECT_EQ(ReadNcclRoutes("plugin via NET/IB/0\n NCCL INFO Channel\n via P2P/ NCCL INFO Channel 0"), NcclRoutes());
  EXPECT_EQ(ReadNcclRoutes(std::string(1 << 20, '\0')), NcclRoutes());
}

class TransportsTest : public testing::Test {
 protected:
  control::HostTopology Read() { return control::ReadHostTopology(driver_, host_.root()); }
  std::vector<std::string> Cards(const std::vector<size_t>& gpus) const {
    std::vector<std::string> cards;
    for (const size_t gpu : gpus) cards.push_back(driver_.gpus.at(gpu).uuid);
    return cards;
  }

  MadeUpHost host_;
  MadeUpGpuDriver driver_;
};

TEST_F(TransportsTest, WhatLiesBetweenCardsTheTopologySays) {
  MakeNvlinkHost(host_, driver_);
  EXPECT_THAT(TransportsOf({.peer_to_peer = true}, Read(), Cards({0, 7})), ElementsAre("NVLink"));
  driver_.all_nvlink = false;
  EXPECT_THAT(TransportsOf({.peer_to_peer = true}, Read(), Cards({0, 1})), ElementsAre("PCIe"));
  driver_.nvlinks = {std::minmax(driver_.gpus[0].pci_address, driver_.gpus[1].pci_address)};
  EXPECT_THAT(TransportsOf({.peer_to_peer = true}, Read(), Cards({0, 1})), ElementsAre("NVLink"));
  EXPECT_THAT(TransportsOf({.peer_to_peer = true}, Read(), Cards({0, 1, 2})), ElementsAre("NVLink", "PCIe"));
}

TEST_F(TransportsTest, UnknownValuesAreNotMadeUp) {
  MakeNvlinkHost(host_, driver_);
  EXPECT_THAT(TransportsOf({.peer_to_peer = true}, Read(), {"GPU-elsewhere", "GPU-there"}),
              ElementsAre("NVLink or PCIe"));
  driver_.nvml_problem = "gone";
  EXPECT_THAT(TransportsOf({.peer_to_peer = true}, Read(), Cards({0, 1})), ElementsAre("NVLink or PCIe"));
  EXPECT_THAT(TransportsOf({}, Read(), Cards({0, 1})), IsEmpty());
}

TEST_F(TransportsTest, HostsAreConnectedByWhatNcclChose) {
  MakeNvlinkHost(host_, driver_);
  EXPECT_THAT(TransportsOf({.peer_to_peer = true, .host_memory = true, .infiniband = true}, Read(), Cards({0, 1})),
              ElementsAre("NVLink", "the memory of the host", "InfiniBand"));
  EXPECT_THAT(TransportsOf({.sockets = true, .other_network = true}, Read(), Cards({0})),
              ElementsAre("sockets", "another network"));
}

TEST_F(TransportsTest, SocketsDespiteAnActiveInfinibandPortAreWarnedOf) {
  EXPECT_EQ(SlowNetworkWarning({.sockets = true}, Read()), std::nullopt);
  host_.AddInfiniband("mlx5_0", "1: DOWN", "InfiniBand", "0");
  EXPECT_EQ(SlowNetworkWarning({.sockets = true}, Read()), std::nullopt);
  host_.AddInfiniband("mlx5_1", "4: ACTIVE", "InfiniBand", "0");
  EXPECT_THAT(SlowNetworkWarning({.sockets = true}, Read()).value_or(""),
              AllOf(HasSubstr("port 1 of mlx5_1 is active"), HasSubstr("libibverbs1")));
  EXPECT_EQ(SlowNetworkWarning({.infiniband = true}, Read()), std::nullopt);
}

}  // namespace
}  // namespace tessera::runtime
