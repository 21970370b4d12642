#include "base/machine/pci_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/test_folder.h"

namespace tessera::base {
namespace {

using ::testing::ElementsAre;

TEST(PciPlaceTest, AnAddressIsWrittenAsTheKernelWritesIt) {
  EXPECT_EQ(PciAddress("0000:3D:00.0"), "0000:3d:00.0");
  EXPECT_EQ(PciAddress("00000000:C1:1F.7"), "0000:c1:1f.7");
  EXPECT_EQ(PciAddress("00010000:01:00.0"), "10000:01:00.0");
  for (const char* text : {"", "3d:00.0", "0000:3d:00", "0000:3d:00.8", "0000:3d:20.0", "0000:3g:00.0", "000:3d:00.0",
                           "0000:3d:00.0 ", "0000:3d/00.0", "-000:3d:00.0", "../..:3d:00.0", "100000000:3d:00.0"}) {
    EXPECT_EQ(PciAddress(text), std::nullopt) << text;
  }
}

class PciTreeTest : public testing::Test {
 protected:
  void Link(const std::string& address, const std::string& target) const {
    std::filesystem::create_directories(folder_ / "sys/bus/pci/devices");
    std::filesystem::create_directory_symlink(target, folder_ / ("sys/bus/pci/devices/" + address));
  }

  TestFolder folder_;
};

TEST_F(PciTreeTest, ADeviceIsBelowItsBridges) {
  folder_.Write("sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/numa_node", "1\n");
  Link("0000:3b:00.0", "../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0");
  const std::optional<PciPlace> place = ReadPciPlace("0000:3b:00.0", folder_.path());
  ASSERT_TRUE(place.has_value());
  EXPECT_THAT(place->path, ElementsAre("pci0000:3a", "0000:3a:00.0", "0000:3b:00.0"));
  EXPECT_EQ(place->numa_node, 1);
}

TEST_F(PciTreeTest, WhatIsNotWithinTheTreeOfDevicesIsNone) {
  folder_.Write("elsewhere/0000:3b:00.0/numa_node", "1\n");
  folder_.Write("sys/devices/pci0000:3a/0000:3c:00.0/numa_node", "1\n");
  Link("0000:3b:00.0", folder_ / "elsewhere/0000:3b:00.0");
  Link("0000:3d:00.0", "../../../devices/pci0000:3a/0000:3c:00.0");
  Link("0000:3e:00.0", "nowhere");
  for (const char* address : {"0000:3b:00.0", "0000:3d:00.0", "0000:3e:00.0", "0000:3f:00.0", "../..", ""}) {
    EXPECT_EQ(ReadPciPlace(address, folder_.path()), std::nullopt) << address;
  }
}

}  // namespace
}  // namespace tessera::base
