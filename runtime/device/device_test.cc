#include "runtime/device/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "control/host/device_memory.h"
#include "kernels/device_runtimes.h"

namespace tessera::runtime {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string Fake(const std::string& kind) {
  return std::string(TESSERA_FAKE_PLUGINS "/libfake_cuda_plugin") + kind + ".so";
}

// Returns the message of a refusal, whose status must be that of an unavailable device.
std::string Refusal(const std::string& name, const std::string& plugin) {
  const absl::StatusOr<at::Device> device = OpenDevice(name, plugin);
  EXPECT_EQ(device.status().code(), absl::StatusCode::kResourceExhausted) << device.status();
  return std::string(device.status().message());
}

TEST(OpenDeviceTest, TheCpuNeedsNoPlugin) {
  const absl::StatusOr<at::Device> device = OpenDevice("cpu", "missing");
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_TRUE(device->is_cpu());
}

TEST(OpenDeviceTest, UnknownNamesAreInvalidWithoutAPlugin) {
  for (const char* name : {"", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:128", "cuda:1x", "cuda 0"}) {
    const absl::Status status = OpenDevice(name, "missing").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("valid values are cpu, cuda, cuda:N, and "));
  }
}

TEST(OpenDeviceTest, ThePluginOpensTheDeviceOfThatNumber) {
  EXPECT_EQ(*OpenDevice("cuda", Fake("")), at::Device(at::kCUDA, 0));
  EXPECT_EQ(*OpenDevice("cuda:0", Fake("")), at::Device(at::kCUDA, 0));
}

TEST(OpenDeviceTest, ThePluginsReasonFollowsTheDevicesName) {
  EXPECT_EQ(Refusal("cuda:7", Fake("")), "device is cuda:7; reason 7");
}

TEST(OpenDeviceTest, ThePluginFindsTheDeviceOfItsMakersName) {
  EXPECT_EQ(*OpenDevice("GPU-00000000-0000-0000-0000-000000000000", Fake("")), at::Device(at::kCUDA, 0));
  EXPECT_EQ(Refusal("GPU-00000000-0000-0000-0000-000000000001", Fake("")),
            "device is GPU-00000000-0000-0000-0000-000000000001; valid is GPU-00000000-0000-0000-0000-000000000000");
}

TEST(OpenDeviceTest, APartOfAGpuIsShownToTheProcessUnlessTheUserSaysWhatIs) {
  const std::string name = "MIG-00000000-0000-0000-0000-000000000002";
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(*OpenDevice(name, Fake("")), at::Device(at::kCUDA, 0));
  setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  EXPECT_THAT(Refusal(name, Fake("")), HasSubstr("valid is GPU-"));
  EXPECT_STREQ(getenv("CUDA_VISIBLE_DEVICES"), "0");
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(DeviceMemoryTest, ThePluginReportsTotalAndFreeMemory) {
  const absl::StatusOr<at::Device> device = OpenDevice("cuda", Fake(""));
  ASSERT_TRUE(device.ok()) << device.status();
  const std::optional<kernels::DeviceMemory> memory = ReadDeviceMemory(*device);
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->total, 8);
  EXPECT_EQ(memory->free, 3);
  EXPECT_EQ(memory->used, 2);
  EXPECT_EQ(memory->cached, 1);
  EXPECT_FALSE(ReadDeviceMemory(at::Device(at::kCUDA, 1)).has_value()) << "the plug-in cannot tell";
  EXPECT_FALSE(ReadDeviceMemory(at::Device(at::kCPU)).has_value());
}

TEST(IdentifyDeviceTest, ThePluginReportsWhatItComputesWith) {
  EXPECT_EQ(*IdentifyDevice("cuda", Fake("")),
            (kernels::DeviceIdentity{.device = "Fake", .driver = "1", .cudnn = "2", .nccl = "3"}));
  EXPECT_EQ(*IdentifyDevice("cpu", "missing"), kernels::DeviceIdentity());
}

TEST(IdentifyDeviceTest, WhatCannotBeOpenedIsRefusedAlike) {
  EXPECT_EQ(IdentifyDevice("cuda:7", Fake("")).status().message(), "device is cuda:7; reason 7");
  for (const auto& [name, plugin] : {std::pair<std::string, std::string>{"gpu", Fake("")},
                                     {"cuda", "missing"},
                                     {"cuda", Fake("_newer")},
                                     {"cuda", Fake("_lonely")}}) {
    EXPECT_EQ(IdentifyDevice(name, plugin).status(), OpenDevice(name, plugin).status());
  }
}

TEST(DeviceRuntimeTest, ADeviceThatWasNeverOpenedHasNone) {
  EXPECT_THROW(ReadDeviceMemory(at::Device(at::kXPU, 0)), c10::Error);
}

TEST(DeviceRuntimeTest, TheCpuWorksAndHasNoGraphs) {
  const kernels::DeviceRuntime& runtime = kernels::DeviceRuntimeOf(at::kCPU);
  EXPECT_EQ(runtime.version, kernels::kDeviceRuntimeVersion);
  EXPECT_TRUE(DeviceWorks(at::Device(at::kCPU)));
  EXPECT_FALSE(runtime.begin_capture(0));
  EXPECT_EQ(runtime.end_capture(0), nullptr);
}

TEST(OpenDeviceTest, AMissingPluginIsCalledMissing) {
  EXPECT_THAT(
      Refusal("cuda", "/nonexistent/libtessera_cuda.so"),
      AllOf(HasSubstr("plug-in (libtessera_cuda.so) is not in the worker's folder"), Not(HasSubstr("nonexistent"))));
}

TEST(OpenDeviceTest, AMissingLibraryOfThePluginIsNamed) {
  EXPECT_THAT(Refusal("cuda", Fake("_lonely")),
              AllOf(HasSubstr("the CUDA plug-in needs libfake_cuda_dependency.so, which is not installed"),
                    HasSubstr("TESSERA_LIBTORCH"), Not(HasSubstr("/"))));
}

TEST(OpenDeviceTest, APluginForAnotherLibTorchIsOfADifferentVersion) {
  EXPECT_THAT(Refusal("cuda", Fake("_unresolved")), AllOf(HasSubstr("different versions"), Not(HasSubstr("/"))));
}

TEST(OpenDeviceTest, APluginWithoutTheFunctionIsOfAnotherVersion) {
  EXPECT_EQ(Refusal("cuda", Fake("_renamed")),
            "device is cuda; the CUDA plug-in is of another version than the worker");
}

TEST(OpenDeviceTest, APluginOfAnotherVersionIsRefusedWithBothVersions) {
  EXPECT_EQ(Refusal("cuda", Fake("_newer")),
            "device is cuda; the CUDA plug-in is of another version than the worker: its functions are of version 999, "
            "the worker's of version 3; install both from one build");
}

TEST(OpenDeviceTest, AFileThatIsNoLibraryIsCalledDamaged) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "libtessera_cuda_damaged.so";
  std::ofstream(file) << "no library";
  EXPECT_THAT(Refusal("cuda", file), AllOf(HasSubstr("libtessera_cuda_damaged.so is damaged"), Not(HasSubstr("/"))));
  std::filesystem::remove(file);
}

TEST(CudaPluginPathTest, ThePluginIsInTheFolderOfTheProgram) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  EXPECT_EQ(CudaPluginPath(), program.parent_path() / "libtessera_cuda.so");
}

}  // namespace
}  // namespace tessera::runtime
