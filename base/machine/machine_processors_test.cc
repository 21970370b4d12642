#include "base/machine/machine_processors.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <optional>
#include <string>

#include "tests/support/test_folder.h"

namespace tessera::base {
namespace {

// Uses a test folder in place of /proc and /sys.
class MachineProcessorsTest : public testing::Test {
 protected:
  std::optional<double> Limit() const { return ReadMachineProcessors(folder_.path()).control_group; }

  // Assumes a machine with 128 processors.
  int32_t Available() const {
    MachineProcessors processors = ReadMachineProcessors(folder_.path());
    processors.allowed = 128;
    return processors.available();
  }

  TestFolder folder_;
};

TEST_F(MachineProcessorsTest, NothingReadableLimitsNothing) {
  EXPECT_EQ(Limit(), std::nullopt);
  EXPECT_EQ(Available(), 128);
}

TEST_F(MachineProcessorsTest, AQuotaOfVersion2IsRoundedUpToWholeProcessors) {
  folder_.Write("proc/self/cgroup", "0::/\n");
  const struct {
    const char* cpu_max;
    int32_t processors;
  } cases[] = {{"150000 100000\n", 2}, {"200000 100000\n", 2}, {"400000 100000\n", 4}, {"50000 100000\n", 1},
               {"1000 100000\n", 1},   {"max 100000\n", 128},  {"6000 2000\n", 3},     {"99900000 100000\n", 128}};
  for (const auto& [cpu_max, processors] : cases) {
    folder_.Write("sys/fs/cgroup/cpu.max", cpu_max);
    EXPECT_EQ(Available(), processors) << cpu_max;
  }
}

TEST_F(MachineProcessorsTest, TheTightestOfTheGroupsAboveCounts) {
  folder_.Write("proc/self/cgroup", "0::/kubepods.slice/pod.slice/container.scope\n");
  folder_.Write("sys/fs/cgroup/kubepods.slice/pod.slice/container.scope/cpu.max", "max 100000\n");
  folder_.Write("sys/fs/cgroup/kubepods.slice/pod.slice/cpu.max", "400000 100000\n");
  folder_.Write("sys/fs/cgroup/kubepods.slice/cpu.max", "12700000 100000\n");
  EXPECT_EQ(Limit(), 4);
  folder_.Write("sys/fs/cgroup/kubepods.slice/cpu.max", "300000 100000\n");
  EXPECT_EQ(Limit(), 3);
  folder_.Write("sys/fs/cgroup/kubepods.slice/pod.slice/container.scope/cpu.max", "25000 50000\n");
  EXPECT_EQ(Limit(), 0.5);
  EXPECT_EQ(Available(), 1);
}

TEST_F(MachineProcessorsTest, AContainersGroupIsFoundWhereItIsMounted) {
  folder_.Write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  for (const char* path : {"/", "/../../elsewhere", "/docker/0123abc"}) {
    folder_.Write("proc/self/cgroup", std::string("0::") + path + "\n");
    EXPECT_EQ(Available(), 2) << path;
  }
}

TEST_F(MachineProcessorsTest, AQuotaOfVersion1IsRoundedUpToWholeProcessors) {
  folder_.Write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,cpuacct:/docker/0123abc\n3:cpuset:/\n0::/\n");
  folder_.Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  folder_.Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Limit(), std::nullopt);
  folder_.Write("sys/fs/cgroup/cpu,cpuacct/docker/0123abc/cpu.cfs_quota_us", "150000\n");
  folder_.Write("sys/fs/cgroup/cpu,cpuacct/docker/0123abc/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Available(), 2);
  folder_.Write("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "100000\n");
  folder_.Write("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Available(), 1);
}

TEST_F(MachineProcessorsTest, AControllerOfVersion1IsFoundUnderItsOwnNameToo) {
  folder_.Write("proc/self/cgroup", "4:cpuacct,cpu:/docker/0123abc\n");
  folder_.Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n");
  folder_.Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Available(), 3);
}

TEST_F(MachineProcessorsTest, AControllerWhoseNameBeginsAlikeIsAnother) {
  folder_.Write("proc/self/cgroup", "4:cpuset:/\n3:cpuacct:/\n");
  for (const char* folder : {"cpu", "cpuset", "cpuacct"}) {
    folder_.Write(std::string("sys/fs/cgroup/") + folder + "/cpu.cfs_quota_us", "100000\n");
    folder_.Write(std::string("sys/fs/cgroup/") + folder + "/cpu.cfs_period_us", "100000\n");
  }
  EXPECT_EQ(Limit(), std::nullopt);
}

TEST_F(MachineProcessorsTest, GarbageInAGroupsFilesIsIgnored) {
  folder_.Write("proc/self/cgroup", "\n0\n0:\n::\n:cpu\n0::/\n3:cpu:/\n");
  for (const char* garbage : {"", "none", "100000", "0 100000", "-1 100000", "100000 0", "100000 -5", "1 2 3", "max",
                              "1.5 100000", "99999999999999999999 100000"}) {
    folder_.Write("sys/fs/cgroup/cpu.max", garbage);
    folder_.Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", garbage);
    folder_.Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "none\n");
    EXPECT_EQ(Limit(), std::nullopt) << garbage;
  }
}

TEST(MachineProcessors, TheLeastIsAvailableAndNamed) {
  MachineProcessors processors{.allowed = 8, .control_group = 1.5};
  EXPECT_EQ(processors.available(), 2);
  EXPECT_EQ(processors.available_in(), "the control group (container) of this process");
  processors.control_group = 64;
  EXPECT_EQ(processors.available(), 8);
  EXPECT_EQ(processors.available_in(), "this machine");
  processors.control_group = 7.5;
  EXPECT_EQ(processors.available(), 8);
  processors.control_group = std::nullopt;
  EXPECT_EQ(processors.available(), 8);
}

TEST(MachineProcessors, AProcessThatIsBoundToOneProcessorHasOne) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  EXPECT_EQ(ReadMachineProcessors().allowed, CPU_COUNT(&all));
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(ReadMachineProcessors().available(), 1);
  EXPECT_EQ(AllowedProcessors(), std::vector<int32_t>{first});
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
  EXPECT_GE(ReadMachineProcessors().available(), 1);
}

}  // namespace
}  // namespace tessera::base
