#include "control/host/gpu_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace tessera::control {
namespace {

using ::testing::HasSubstr;

class GpuDriverTest : public testing::Test {
 protected:
  void TearDown() override { unsetenv("MADE_UP_DRIVER_FAULT"); }

  static std::unique_ptr<GpuDriver> Driver(const char* fault = "") {
    setenv("MADE_UP_DRIVER_FAULT", fault, 1);
    return MakeGpuDriver({.cuda = TESSERA_MADE_UP_DRIVER, .nvml = TESSERA_MADE_UP_DRIVER});
  }
  static absl::StatusOr<bool> Nvlink(const char* fault) {
    return Driver(fault)->HaveNvlink("0000:3d:00.0", "0000:c1:00.0");
  }
};

TEST_F(GpuDriverTest, ReportsEachGpuByCudasIndex) {
  const absl::StatusOr<std::vector<DriverGpu>> gpus = Driver()->Gpus();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ASSERT_EQ(gpus->size(), 2u);
  EXPECT_EQ(gpus->at(0).pci_address, "0000:3d:00.0");
  EXPECT_EQ(gpus->at(1).pci_address, "0000:c1:00.0");
  EXPECT_EQ(gpus->at(1).uuid, "GPU-47474747-4747-4747-4747-474747474747");
  EXPECT_EQ(gpus->at(0).memory_bytes, uint64_t{24} << 30);
  EXPECT_EQ(Driver("no memory")->Gpus()->at(0).memory_bytes, 0u);
}

TEST_F(GpuDriverTest, ReportsWhichGpusHaveNvlink) {
  EXPECT_EQ(*Nvlink(""), true);
  EXPECT_EQ(*Nvlink("no NVLink"), false);
}

TEST_F(GpuDriverTest, AMachineWithoutGpusIsNoError) {
  const absl::StatusOr<std::vector<DriverGpu>> gpus = Driver("no GPU")->Gpus();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  EXPECT_TRUE(gpus->empty());
}

TEST_F(GpuDriverTest, WhatADriverDoesNotAnswerIsSaid) {
  for (const auto& [fault, said] : {std::pair("no start", "error is 999"), std::pair("many", "1048576 GPUs"),
                                    std::pair("no address", "does not report where cuda:0 is"),
                                    std::pair("garbage", "no PCI address for cuda:0")}) {
    EXPECT_THAT(std::string(Driver(fault)->Gpus().status().message()), HasSubstr(said));
  }
  for (const auto& [fault, said] :
       {std::pair("no NVML", "does not start"), std::pair("unknown", "does not find 0000:3d"),
        std::pair("not supported", "how 0000:3d:00.0 and 0000:c1:00.0 are linked")}) {
    EXPECT_THAT(std::string(Nvlink(fault).status().message()), HasSubstr(said));
  }
}

TEST_F(GpuDriverTest, ADriverThatIsNotInstalledOrIsAnotherLibraryIsSaid) {
  const auto absent = MakeGpuDriver({.cuda = "libabsent.so.1", .nvml = "libabsent.so.2"});
  EXPECT_THAT(std::string(absent->Gpus().status().message()), HasSubstr("libabsent.so.1"));
  EXPECT_THAT(std::string(absent->HaveNvlink("a", "b").status().message()), HasSubstr("libabsent.so.2"));
  const auto other = MakeGpuDriver({.cuda = "libm.so.6", .nvml = "libm.so.6"});
  EXPECT_THAT(std::string(other->Gpus().status().message()), HasSubstr("libm.so.6 of NVIDIA's driver has no cuInit"));
  EXPECT_THAT(std::string(other->HaveNvlink("a", "b").status().message()), HasSubstr("has no nvmlInit_v2"));
}

}  // namespace
}  // namespace tessera::control
