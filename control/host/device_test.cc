#include "control/host/device.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace tessera::control {
namespace {

constexpr char kUuid[] = "5c89852c-d268-c3f3-1b07-005d5ae1dc3f";

TEST(DeviceTest, ReadsWhatItWrites) {
  EXPECT_EQ(ParseDevice("cpu"), Device());
  EXPECT_EQ(ParseDevice("cuda"), Device{.kind = DeviceKind::kCuda});
  EXPECT_EQ(ParseDevice("cuda:12"), (Device{.kind = DeviceKind::kCuda, .index = 12}));
  for (const char* name : {"cpu", "cuda", "cuda:0", "cuda:12"}) EXPECT_EQ(DeviceText(ParseDevice(name).value()), name);
}

TEST(DeviceTest, TakesTheNamesOfADevicesMaker) {
  for (const std::string& name :
       {absl::StrCat("GPU-", kUuid), absl::StrCat("MIG-", kUuid), absl::StrCat("MIG-GPU-", kUuid, "/1/0")}) {
    const std::optional<Device> device = ParseDevice(name);
    ASSERT_TRUE(device.has_value()) << name;
    EXPECT_EQ(*device, (Device{.kind = DeviceKind::kCuda, .name = name}));
    EXPECT_EQ(DeviceText(*device), name);
    EXPECT_TRUE(IsDevice(name, DeviceKind::kCuda));
    for (size_t length = 0; length < name.size(); ++length) {
      EXPECT_EQ(ParseDevice(name.substr(0, length)), std::nullopt) << name.substr(0, length);
    }
    EXPECT_EQ(ParseDevice(name + "0/"), std::nullopt);
  }
  for (const std::string& name :
       {absl::StrCat("gpu-", kUuid), absl::StrCat("GPU-", kUuid, "/1/0"), absl::StrCat("MIG-GPU-", kUuid),
        std::string("GPU-5c89852cgd268-c3f3-1b07-005d5ae1dc3f")}) {
    EXPECT_EQ(ParseDevice(name), std::nullopt) << name;
  }
}

TEST(DeviceTest, OtherTextsAreNoDevice) {
  for (const char* name : {"", "gpu", "CPU", "cpu:0", "cpu,cpu", "cuda:", "cuda:-1", "cuda:+1", "cuda: 1", "cuda:1x",
                           "cuda:99999999999"}) {
    EXPECT_EQ(ParseDevice(name), std::nullopt) << name;
    EXPECT_FALSE(IsDevice(name, DeviceKind::kCpu) || IsDevice(name, DeviceKind::kCuda)) << name;
  }
}

TEST(DeviceTest, ADeviceOfANodeHasItsName) {
  const PlacedDevice placed = SplitDevice("node-a.rack1/cuda:3");
  EXPECT_EQ(placed.node, "node-a.rack1");
  EXPECT_EQ(placed.device, "cuda:3");
  EXPECT_EQ(SplitDevice("cuda:3").node, "");
  EXPECT_EQ(SplitDevice("MIG-GPU-0/1/2").node, "") << "which is a name of its maker";
  EXPECT_EQ(SplitDevice("/cpu").node, "");
}

TEST(DeviceTest, OnItsHostADeviceIsNamedWithoutItsNode) {
  EXPECT_EQ(DeviceOnItsHost("node-a/cuda:3"), "cuda:3");
  EXPECT_EQ(DeviceOnItsHost("node-a/cpu:1"), "cpu");
  EXPECT_EQ(DeviceOnItsHost("cpu"), "cpu");
  EXPECT_TRUE(IsDevice("node-a/cpu:1", DeviceKind::kCpu));
  EXPECT_TRUE(IsDevice("node-a/cuda:1", DeviceKind::kCuda));
}

TEST(DeviceTest, NamesOfNodesAndWhatTheyLend) {
  for (const char* name : {"a", "0", "node-a", "node.example", "0123456789012345678901234567890123456789"}) {
    EXPECT_TRUE(IsNodeName(name)) << name;
  }
  for (const char* name : {"", "-a", ".a", "Node", "a b", "a/b", "a_b"}) EXPECT_FALSE(IsNodeName(name)) << name;
  EXPECT_FALSE(IsNodeName(std::string(64, 'a')));
  for (const char* name : {"cpu:0", "cuda:12"}) EXPECT_TRUE(IsNodeDevice(name)) << name;
  for (const char* name : {"cpu", "cuda:", "cuda:-1", "gpu:0", "cpu:12345", "cpu:0 "}) {
    EXPECT_FALSE(IsNodeDevice(name)) << name;
  }
}

}  // namespace
}  // namespace tessera::control
