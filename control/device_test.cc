#include "control/device.h"

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

}  // namespace
}  // namespace tessera::control
