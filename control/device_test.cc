#include "control/device.h"

#include <gtest/gtest.h>

namespace tessera::control {
namespace {

TEST(DeviceTest, ReadsWhatItWrites) {
  EXPECT_EQ(ParseDevice("cpu"), Device());
  EXPECT_EQ(ParseDevice("cuda"), Device{.kind = DeviceKind::kCuda});
  EXPECT_EQ(ParseDevice("cuda:12"), (Device{.kind = DeviceKind::kCuda, .index = 12}));
  for (const char* name : {"cpu", "cuda", "cuda:0", "cuda:12"}) EXPECT_EQ(DeviceText(ParseDevice(name).value()), name);
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
