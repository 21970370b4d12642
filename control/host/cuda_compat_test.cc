#include "control/host/cuda_compat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "tests/support/test_folder.h"

namespace tessera::control {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kHopper[] = "NVIDIA H100 80GB HBM3";

TEST(CudaCompatTest, ReadsTheDriverAndItsCards) {
  TestFolder host;
  EXPECT_EQ(ReadNvidiaDriver(host.path()).version, "");
  host.Write("sys/module/nvidia/version", "570.124.06\n");
  host.Write("proc/driver/nvidia/gpus/0000:c1:00.0/information", "Model: \t\t NVIDIA L40S\nIRQ:   \t\t 310\n");
  host.Write("proc/driver/nvidia/gpus/0000:3d:00.0/information", absl::StrCat("Model: \t\t ", kHopper, "\nIRQ: 1\n"));
  const NvidiaDriver driver = ReadNvidiaDriver(host.path());
  EXPECT_EQ(driver.version, "570.124.06");
  EXPECT_THAT(driver.cards, ElementsAre(kHopper, "NVIDIA L40S"));
  host.Write("sys/module/nvidia/version", "$(id)\n");
  EXPECT_EQ(ReadNvidiaDriver(host.path()).version, "");
}

TEST(CudaCompatTest, ADriverServesByItselfFrom580) {
  EXPECT_EQ(FitOf({.version = "580.65.06", .cards = {kHopper}}), DriverFit::kServes);
  EXPECT_EQ(FitOf({.version = "595.10", .cards = {"NVIDIA GeForce RTX 4090"}}), DriverFit::kServes);
  EXPECT_EQ(FitOf({.version = "580"}), DriverFit::kServes);
  EXPECT_EQ(FitOf({}), DriverFit::kUnknown);
}

TEST(CudaCompatTest, AnOlderDriverServesThroughCompatOnDataCentreCardsOnly) {
  for (const char* card : {kHopper, "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA A10G", "NVIDIA L4", "NVIDIA L40S",
                           "NVIDIA B200", "NVIDIA GH200 480GB", "NVIDIA GB200", "A100-PCIE-40GB"}) {
    EXPECT_EQ(FitOf({.version = "570.124.06", .cards = {card}}), DriverFit::kCompat) << card;
    EXPECT_EQ(FitOf({.version = "535.54.03", .cards = {card, card}}), DriverFit::kCompat) << card;
    EXPECT_EQ(FitOf({.version = "530.30.02", .cards = {card}}), DriverFit::kTooOld) << card;
    EXPECT_EQ(FitOf({.version = "570.124.06", .cards = {card, "NVIDIA GeForce RTX 3090"}}), DriverFit::kTooOld) << card;
  }
  for (const char* card : {"NVIDIA GeForce RTX 4090", "NVIDIA RTX A6000", "NVIDIA RTX 6000 Ada Generation",
                           "NVIDIA TITAN RTX", "Quadro RTX 8000", "NVIDIA Graphics Device", ""}) {
    EXPECT_EQ(FitOf({.version = "570.124.06", .cards = {card}}), DriverFit::kTooOld) << card;
  }
  EXPECT_EQ(FitOf({.version = "570.124.06"}), DriverFit::kTooOld) << "no card can be seen";
}

TEST(CudaCompatTest, ProcessesThatAreStartedFindItFirstWhereItIsNeededAndInstalled) {
  TestFolder tree;
  const std::string program = tree.path() + "/bin/tessera", folder = tree.path() + "/lib/cuda-compat";
  const NvidiaDriver older = {.version = "570.124.06", .cards = {kHopper}};
  setenv("LD_LIBRARY_PATH", "/others", 1);
  UseCudaCompat(older, program);
  EXPECT_STREQ(getenv("LD_LIBRARY_PATH"), "/others") << "it is not installed";
  EXPECT_THAT(CudaCompatOf(program), IsEmpty());
  tree.Write("lib/cuda-compat/libcuda.so.1", "");
  UseCudaCompat({.version = "580.65.06", .cards = {kHopper}}, program);
  UseCudaCompat({.version = "570.124.06", .cards = {"NVIDIA GeForce RTX 4090"}}, program);
  EXPECT_STREQ(getenv("LD_LIBRARY_PATH"), "/others") << "it is not needed, or does not work";
  UseCudaCompat(older, program);
  EXPECT_EQ(getenv("LD_LIBRARY_PATH"), folder + ":/others");
  unsetenv("LD_LIBRARY_PATH");
  UseCudaCompat(older, program);
  EXPECT_EQ(getenv("LD_LIBRARY_PATH"), folder);
  unsetenv("LD_LIBRARY_PATH");
}

}  // namespace
}  // namespace tessera::control
