#include "base/machine/numa_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/test_folder.h"

namespace tessera::base {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(NumaNodesTest, AListIsReadAndWrittenAsTheKernelWritesIt) {
  EXPECT_THAT(ParseProcessorList("0-3,8,10-11\n").value(), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(ParseProcessorList("\n").value(), IsEmpty());
  for (const char* text : {"", "0", "0-3,8,10-11", "5,7,9-12"}) {
    EXPECT_EQ(ProcessorListText(ParseProcessorList(text).value()), text);
  }
}

TEST(NumaNodesTest, AnotherTextIsNoList) {
  for (const char* text : {"a", "0-", "-3", "3-1", "0,0", "4,2", "0-65536", "0-99999999999", "0,,1", "0 1", "0x1"}) {
    EXPECT_EQ(ParseProcessorList(text), std::nullopt) << text;
  }
}

TEST(NumaNodesTest, NodesAreReadInTheOrderOfTheirNumbers) {
  const TestFolder folder;
  folder.Write("sys/devices/system/node/node10/cpulist", "4-7\n");
  folder.Write("sys/devices/system/node/node2/cpulist", "0-3\n");
  folder.Write("sys/devices/system/node/node3/cpulist", "\n");
  folder.Write("sys/devices/system/node/node4/cpulist", "garbage\n");
  folder.Write("sys/devices/system/node/nodes/cpulist", "1\n");
  folder.Write("sys/devices/system/node/possible", "0-10\n");
  folder.Write("sys/devices/system/cpu/cpu4/topology/physical_package_id", "1\n");
  const std::vector<NumaNode> nodes = ReadNumaNodes(folder.path());
  ASSERT_THAT(nodes, SizeIs(3));
  EXPECT_EQ(nodes[0].number, 2);
  EXPECT_EQ(nodes[0].socket, std::nullopt);
  EXPECT_EQ(nodes[1].number, 3) << "a node of memory alone";
  EXPECT_THAT(nodes[1].processors, IsEmpty());
  EXPECT_EQ(nodes[2].number, 10);
  EXPECT_THAT(nodes[2].processors, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(nodes[2].socket, 1);
}

}  // namespace
}  // namespace tessera::base
