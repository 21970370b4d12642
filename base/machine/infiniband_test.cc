#include "base/machine/infiniband.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/test_folder.h"

namespace tessera::base {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class InfinibandTest : public testing::Test {
 protected:
  void Add(const std::string& device, const std::string& port, const std::string& state,
           const std::string& link_layer) {
    const std::string folder = "sys/class/infiniband/" + device;
    folder_.Write(folder + "/ports/" + port + "/state", state);
    folder_.Write(folder + "/ports/" + port + "/link_layer", link_layer);
    folder_.Write(folder + "/ports/" + port + "/rate", "200 Gb/sec (4X HDR)\n");
    folder_.Write(folder + "/device/numa_node", "1\n");
  }
  std::vector<InfinibandPort> Read() {
    problems_.clear();
    return ReadInfinibandPorts(problems_, folder_.path());
  }

  TestFolder folder_;
  std::vector<std::string> problems_;
};

TEST_F(InfinibandTest, APortIsActiveWhenTheKernelSaysSo) {
  Add("mlx5_1", "1", "4: ACTIVE\n", "InfiniBand\n");
  Add("mlx5_0", "1", "1: DOWN\n", "InfiniBand\n");
  Add("mlx5_0", "2", "5: ACTIVE_DEFER\n", "Ethernet\n");
  const std::vector<InfinibandPort> ports = Read();
  EXPECT_THAT(problems_, IsEmpty());
  ASSERT_THAT(ports, SizeIs(3));
  EXPECT_EQ(ports[0].device + std::to_string(ports[0].port), "mlx5_01");
  EXPECT_FALSE(ports[0].active);
  EXPECT_EQ(ports[1].link_layer, "Ethernet");
  EXPECT_FALSE(ports[1].active) << "a port that has lost its link for a moment";
  EXPECT_TRUE(ports[2].active);
  EXPECT_EQ(ports[2].rate, "200 Gb/sec (4X HDR)");
  EXPECT_EQ(ports[2].numa_node, 1);
}

TEST_F(InfinibandTest, AHostWithoutItHasNoPorts) {
  EXPECT_THAT(Read(), IsEmpty());
  EXPECT_THAT(problems_, IsEmpty());
}

TEST_F(InfinibandTest, GarbageIsLeftOutAndSaid) {
  Add("mlx5_0", "1", "4: ACTIVE\n", "InfiniBand\n");
  Add("mlx5_1", "1", std::string(1 << 16, '4'), "InfiniBand\n");
  Add("mlx5_2", "1", "4: ACTIVE\n", "\x1b[31m\n");
  Add("mlx5_3", "-7", "4: ACTIVE\n", "InfiniBand\n");
  Add("mlx5 4\n", "1", "4: ACTIVE\n", "InfiniBand\n");
  EXPECT_THAT(Read(), SizeIs(1));
  EXPECT_THAT(problems_, SizeIs(4));
  for (const std::string& problem : problems_) EXPECT_THAT(problem, HasSubstr(" and is ignored"));
}

}  // namespace
}  // namespace tessera::base
