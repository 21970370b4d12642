#include "control/host/host_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/made_up_host.h"

namespace tessera::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class HostTopologyTest : public testing::Test {
 protected:
  HostTopology Read() { return ReadHostTopology(driver_, host_.root()); }

  MadeUpHost host_;
  MadeUpGpuDriver driver_;
};

TEST_F(HostTopologyTest, GpusOnNvlinksSwitchesAllHaveIt) {
  MakeNvlinkHost(host_, driver_);
  const HostTopology topology = Read();
  EXPECT_THAT(topology.problems, IsEmpty());
  ASSERT_EQ(topology.gpus.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(topology.gpus[i].numa_node, i / 4);
    EXPECT_EQ(topology.gpus[i].socket, i / 4);
    for (size_t j = 0; j < 8; ++j) EXPECT_EQ(topology.link(i, j), GpuLink::kNvlink);
  }
  EXPECT_EQ(LinksText(topology), "NVLink between all");
  EXPECT_EQ(driver_.asked, 28) << "each pair once";
}

TEST_F(HostTopologyTest, APathOfPcieIsAsLongAsTheDevicesThatItPasses) {
  MakePcieHost(host_, driver_);
  const HostTopology topology = Read();
  EXPECT_THAT(topology.problems, IsEmpty());
  EXPECT_EQ(topology.link(0, 1), GpuLink::kPcieSwitch);
  EXPECT_EQ(topology.link(0, 2), GpuLink::kPcieSocket);
  EXPECT_EQ(topology.link(2, 1), GpuLink::kPcieSocket);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(topology.link(i, 3), GpuLink::kPcieSockets);
  EXPECT_EQ(topology.link(3, 0), GpuLink::kPcieSockets);
  EXPECT_EQ(LinksText(topology),
            "PCIe within a switch between cuda:0 and cuda:1; PCIe within a socket between cuda:0 and cuda:2, cuda:1 "
            "and cuda:2; PCIe across sockets between all others");
}

TEST_F(HostTopologyTest, NodesOfOneSocketAreOneSocket) {
  host_.AddNode(0, "0-7", 0, 0);
  host_.AddNode(1, "8-15", 8, 0);
  for (const auto& [path, node] : {std::pair("pci0000:00/0000:00:01.0/0000:01:00.0", "0"),
                                   std::pair("pci0000:40/0000:40:01.0/0000:41:00.0", "1")}) {
    host_.AddPciDevice(path, node);
    driver_.gpus.push_back({.pci_address = std::filesystem::path(path).filename()});
  }
  EXPECT_EQ(Read().link(0, 1), GpuLink::kPcieSocket);
}

TEST_F(HostTopologyTest, PairsOnABridgeOfNvlinkAreDistinguishedFromTheOthers) {
  MakePcieHost(host_, driver_);
  driver_.nvlinks = {{"0000:21:00.0", "0000:81:00.0"}};
  const HostTopology topology = Read();
  EXPECT_EQ(topology.link(3, 2), GpuLink::kNvlink);
  EXPECT_EQ(topology.link(3, 1), GpuLink::kPcieSockets);
  EXPECT_EQ(topology.SlowestLink({2, 3}), GpuLink::kNvlink);
  EXPECT_EQ(topology.SlowestLink({0, 2, 1}), GpuLink::kPcieSocket);
  EXPECT_EQ(topology.SlowestLink({0, 1, 2, 3}), GpuLink::kPcieSockets);
  EXPECT_EQ(topology.SlowestLink({0}), std::nullopt);
  EXPECT_EQ(topology.SlowestLink({0, 4}), std::nullopt);
}

TEST_F(HostTopologyTest, AGpuIsFoundByItsIndexAndByItsName) {
  MakeNvlinkHost(host_, driver_);
  const HostTopology topology = Read();
  EXPECT_EQ(topology.FindGpu("cuda:3"), 3u);
  EXPECT_EQ(topology.FindGpu("cuda"), 0u);
  EXPECT_EQ(topology.FindGpu("GPU-00000000-0000-0000-0000-000000000005"), 5u);
  for (const char* other : {"cuda:8", "cpu", "GPU-11111111-0000-0000-0000-000000000005", "node-a/cuda:1", ""}) {
    EXPECT_EQ(topology.FindGpu(other), std::nullopt) << other;
  }
}

TEST_F(HostTopologyTest, WhatTheKernelDoesNotShowIsUnknownAndSaid) {
  MakePcieHost(host_, driver_);
  driver_.gpus.push_back({.pci_address = "0000:99:00.0"});
  const HostTopology topology = Read();
  EXPECT_THAT(topology.problems, ElementsAre(HasSubstr("does not show where 0000:99:00.0 is")));
  EXPECT_THAT(topology.gpus[4].path, IsEmpty());
  EXPECT_EQ(topology.link(0, 4), GpuLink::kPcie);
  EXPECT_EQ(topology.link(0, 1), GpuLink::kPcieSwitch);
}

TEST_F(HostTopologyTest, GarbageInTheKernelsFilesIsUnknown) {
  MakePcieHost(host_, driver_);
  for (const char* garbage : {"", "one", "-1", "99999999999", "7", "0 1"}) {
    host_.folder().Write("sys/devices/pci0000:20/0000:20:01.0/0000:21:00.0/numa_node", garbage);
    const HostTopology topology = Read();
    EXPECT_EQ(topology.gpus[2].numa_node, std::nullopt) << garbage;
    EXPECT_EQ(topology.link(0, 2), GpuLink::kPcie) << garbage;
    EXPECT_EQ(topology.link(0, 3), GpuLink::kPcieSockets) << garbage;
  }
  host_.folder().Write("sys/devices/system/node/node1/cpulist", std::string(1 << 20, '\xff'));
  EXPECT_EQ(Read().gpus[3].numa_node, std::nullopt);
  host_.folder().Write("sys/devices/system/cpu/cpu0/topology/physical_package_id", "the first");
  EXPECT_EQ(Read().gpus[0].socket, std::nullopt);
}

TEST_F(HostTopologyTest, WhereThereIsOneNodeEveryGpuIsNearIt) {
  host_.AddNode(0, "0-7", 0, 0);
  host_.AddPciDevice("pci0000:00/0000:00:03.0", "-1");
  EXPECT_EQ(PlaceGpu("0000:00:03.0", host_.root()).numa_node, 0);
}

TEST_F(HostTopologyTest, WithoutNvmlTheKernelsPathsRemain) {
  MakePcieHost(host_, driver_);
  driver_.nvml_problem = "libnvidia-ml.so.1 is gone";
  const HostTopology topology = Read();
  EXPECT_THAT(topology.problems, ElementsAre("it is not known which GPUs have NVLink: libnvidia-ml.so.1 is gone"));
  EXPECT_EQ(topology.link(0, 1), GpuLink::kPcieSwitch);
  EXPECT_FALSE(topology.knows_nvlink);
  EXPECT_EQ(driver_.asked, 1) << "it is not asked again";
}

TEST_F(HostTopologyTest, WithoutADriverThereAreNoGpus) {
  driver_.problem = "libcuda.so.1 is not installed here";
  host_.AddInfiniband("mlx5_0", "4: ACTIVE", "InfiniBand", "0");
  const HostTopology topology = Read();
  EXPECT_THAT(topology.problems, ElementsAre(driver_.problem));
  EXPECT_THAT(topology.gpus, IsEmpty());
  EXPECT_EQ(topology.infiniband.size(), 1u);
  EXPECT_EQ(LinksText(topology), "");
}

}  // namespace
}  // namespace tessera::control
