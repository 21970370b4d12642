#include "base/machine/machine_memory.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>

#include "tests/support/test_folder.h"

namespace tessera::base {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kGiB = int64_t{1} << 30;

std::string GiB(int64_t count) { return std::to_string(count * kGiB) + "\n"; }

// Uses a test folder in place of /proc and /sys.
class MachineMemoryTest : public testing::Test {
 protected:
  MachineMemory Read() const { return ReadMachineMemory(folder_.path()); }

  void WriteMeminfo(const std::string& available) {
    folder_.Write("proc/meminfo", "MemTotal:       24684084 kB\nMemFree:        20819248 kB\nMemAvailable:   " +
                                      available + "\nBuffers:            4952 kB\n");
  }

  TestFolder folder_;
};

TEST_F(MachineMemoryTest, NothingReadableLimitsNothing) {
  const MachineMemory memory = Read();
  EXPECT_EQ(memory.machine, std::nullopt);
  EXPECT_EQ(memory.control_group, std::nullopt);
  EXPECT_EQ(memory.address_space, std::nullopt);
  EXPECT_EQ(memory.available(), kMost);
}

TEST_F(MachineMemoryTest, TheMachinesMemoryIsWhatTheKernelCallsAvailable) {
  WriteMeminfo("22955068 kB");
  EXPECT_EQ(Read().machine, 22955068 * int64_t{1024});
  EXPECT_EQ(Read().available(), 22955068 * int64_t{1024});
  EXPECT_EQ(Read().available_in(), "this machine");
}

TEST_F(MachineMemoryTest, GarbageInMeminfoIsIgnored) {
  for (const char* garbage : {"", "kB", "much kB", "-5 kB", "5 MB", "5", "9223372036854775807 kB",
                              "99999999999999999999 kB", "5 kB kB", "5.5 kB"}) {
    WriteMeminfo(garbage);
    EXPECT_EQ(Read().machine, std::nullopt) << garbage;
  }
  folder_.Write("proc/meminfo", "MemAvailableSoon: 5 kB\nNotMemAvailable: 5 kB\n" + std::string(3, '\0'));
  EXPECT_EQ(Read().machine, std::nullopt);
}

TEST_F(MachineMemoryTest, AFileAsLongAsMemoryIsNotReadToItsEnd) {
  const std::string line = "MemAvailable: 7 kB\n";
  folder_.Write("proc/meminfo", std::string(2 << 20, '\n') + line);
  EXPECT_EQ(Read().machine, std::nullopt);
}

TEST_F(MachineMemoryTest, AGroupOfVersion2LeavesItsLimitLessWhatIsInUse) {
  folder_.Write("proc/self/cgroup", "0::/system.slice/tessera.service\n");
  const std::string group = "sys/fs/cgroup/system.slice/tessera.service/";
  folder_.Write(group + "memory.max", GiB(16));
  folder_.Write(group + "memory.high", "max\n");
  folder_.Write(group + "memory.current", GiB(5));
  EXPECT_EQ(Read().control_group, 11 * kGiB);
  folder_.Write(group + "memory.stat",
                "anon 1\nactive_file 77\ninactive_files 5\ninactive_file " + GiB(2) + "slab 9\n");
  EXPECT_EQ(Read().control_group, 13 * kGiB);
}

TEST_F(MachineMemoryTest, TheLimitAboveWhichTheKernelSlowsAGroupDownCountsToo) {
  folder_.Write("proc/self/cgroup", "0::/a\n");
  folder_.Write("sys/fs/cgroup/a/memory.max", "max\n");
  folder_.Write("sys/fs/cgroup/a/memory.high", GiB(4));
  folder_.Write("sys/fs/cgroup/a/memory.current", GiB(1));
  EXPECT_EQ(Read().control_group, 3 * kGiB);
}

TEST_F(MachineMemoryTest, TheTightestOfTheGroupsAboveCounts) {
  folder_.Write("proc/self/cgroup", "0::/pod/container\n");
  folder_.Write("sys/fs/cgroup/pod/container/memory.max", GiB(8));
  folder_.Write("sys/fs/cgroup/pod/container/memory.current", GiB(1));
  folder_.Write("sys/fs/cgroup/pod/memory.max", GiB(10));
  folder_.Write("sys/fs/cgroup/pod/memory.current", GiB(7));  // the pod's other containers
  EXPECT_EQ(Read().control_group, 3 * kGiB);
}

TEST_F(MachineMemoryTest, AContainersGroupIsFoundWhereItIsMounted) {
  folder_.Write("proc/self/cgroup", "0::/\n");
  folder_.Write("sys/fs/cgroup/memory.max", GiB(6));
  EXPECT_EQ(Read().control_group, 6 * kGiB);
  folder_.Write("proc/self/cgroup", "0::/../../elsewhere\n");
  EXPECT_EQ(Read().control_group, 6 * kGiB);
}

TEST_F(MachineMemoryTest, AGroupOfVersion1LeavesItsLimitLessWhatIsInUse) {
  folder_.Write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/docker/0123abc\n3:cpuset:/\n0::/\n");
  const std::string group = "sys/fs/cgroup/memory/docker/0123abc/";
  folder_.Write(group + "memory.limit_in_bytes", GiB(16));
  folder_.Write(group + "memory.usage_in_bytes", GiB(6));
  folder_.Write(group + "memory.stat", "inactive_file 5\ntotal_inactive_file " + GiB(1));
  folder_.Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  folder_.Write("sys/fs/cgroup/memory/memory.usage_in_bytes", GiB(20));
  EXPECT_EQ(Read().control_group, 11 * kGiB);
}

TEST_F(MachineMemoryTest, AGroupOfVersion1UnderItsHostsNameIsFoundWhereItIsMounted) {
  folder_.Write("proc/self/cgroup", "4:memory:/docker/0123abc\n");
  folder_.Write("sys/fs/cgroup/memory/memory.limit_in_bytes", GiB(2));
  EXPECT_EQ(Read().control_group, 2 * kGiB);
}

TEST_F(MachineMemoryTest, GroupsWithoutALimitLimitNothing) {
  folder_.Write("proc/self/cgroup", "4:memory:/\n0::/\n");
  folder_.Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  folder_.Write("sys/fs/cgroup/memory.max", "max\n");
  folder_.Write("sys/fs/cgroup/memory.current", GiB(5));
  EXPECT_EQ(Read().control_group, std::nullopt);
}

TEST_F(MachineMemoryTest, AnOverfullGroupLeavesNothing) {
  folder_.Write("proc/self/cgroup", "0::/\n");
  folder_.Write("sys/fs/cgroup/memory.max", GiB(1));
  folder_.Write("sys/fs/cgroup/memory.current", GiB(2));
  EXPECT_EQ(Read().control_group, 0);
}

TEST_F(MachineMemoryTest, MoreInactivePagesThanPagesAddNothingToTheLimit) {
  folder_.Write("proc/self/cgroup", "0::/\n");
  folder_.Write("sys/fs/cgroup/memory.max", GiB(1));
  folder_.Write("sys/fs/cgroup/memory.current", "5\n");
  folder_.Write("sys/fs/cgroup/memory.stat", "inactive_file 9223372036854775807\n");
  EXPECT_EQ(Read().control_group, kGiB);
}

TEST_F(MachineMemoryTest, GarbageInAGroupsFilesIsIgnored) {
  folder_.Write("proc/self/cgroup", "\n0\n0:\n::\n:memory\n0::/\n");
  for (const char* garbage : {"", "none", "-1", "18446744073709551615", "12 34"}) {
    folder_.Write("sys/fs/cgroup/memory.max", garbage);
    EXPECT_EQ(Read().control_group, std::nullopt) << garbage;
  }
  folder_.Write("sys/fs/cgroup/memory.max", GiB(3));
  for (const char* garbage : {"", "none", "-1", "18446744073709551615"}) {
    folder_.Write("sys/fs/cgroup/memory.current", garbage);
    EXPECT_EQ(Read().control_group, 3 * kGiB) << garbage;
  }
}

TEST_F(MachineMemoryTest, TheLimitOfAddressSpaceCountsLessWhatIsMapped) {
  folder_.Write("proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units     \n"
                "Max file size             unlimited            unlimited            bytes     \n"
                "Max address space         8589934592           unlimited            bytes     \n");
  EXPECT_EQ(Read().address_space, 8 * kGiB);
  folder_.Write("proc/self/status", "Name:\tworker\nVmPeak:\t 4194304 kB\nVmSize:\t 3145728 kB\nVmRSS:\t 1 kB\n");
  EXPECT_EQ(Read().address_space, 5 * kGiB);
  folder_.Write("proc/self/status", "VmSize:\t 9145728 kB\n");
  EXPECT_EQ(Read().address_space, 0);
}

TEST_F(MachineMemoryTest, AnUnlimitedAddressSpaceLimitsNothing) {
  folder_.Write("proc/self/limits", "Max address space         unlimited            unlimited            bytes\n");
  folder_.Write("proc/self/status", "VmSize:\t 3145728 kB\n");
  EXPECT_EQ(Read().address_space, std::nullopt);
}

TEST_F(MachineMemoryTest, ThereIsNoMoreInAllThanTheTightestGroupAllows) {
  folder_.Write("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 1048576 kB\n");
  EXPECT_EQ(ReadTotalMemory(folder_.path()), 64 * kGiB);
  folder_.Write("proc/self/cgroup", "0::/pod/container\n");
  folder_.Write("sys/fs/cgroup/pod/container/memory.max", "max\n");
  folder_.Write("sys/fs/cgroup/pod/container/memory.current", GiB(5));
  EXPECT_EQ(ReadTotalMemory(folder_.path()), 64 * kGiB);
  folder_.Write("sys/fs/cgroup/pod/memory.max", GiB(10));
  folder_.Write("sys/fs/cgroup/pod/memory.current", GiB(7));
  EXPECT_EQ(ReadTotalMemory(folder_.path()), 10 * kGiB) << "whatever is in use";
  folder_.Write("sys/fs/cgroup/pod/container/memory.max", GiB(6));
  EXPECT_EQ(ReadTotalMemory(folder_.path()), 6 * kGiB);
  folder_.Write("sys/fs/cgroup/pod/container/memory.max", GiB(100));
  folder_.Write("sys/fs/cgroup/pod/memory.max", GiB(100));
  EXPECT_EQ(ReadTotalMemory(folder_.path()), 64 * kGiB) << "a limit makes no memory";
}

TEST_F(MachineMemoryTest, AGroupOfVersion1LimitsWhatThereIsInAll) {
  folder_.Write("proc/meminfo", "MemTotal: 67108864 kB\n");
  folder_.Write("proc/self/cgroup", "4:cpu,memory:/docker/0123abc\n0::/\n");
  folder_.Write("sys/fs/cgroup/memory/docker/0123abc/memory.limit_in_bytes", GiB(16));
  folder_.Write("sys/fs/cgroup/memory/docker/0123abc/memory.usage_in_bytes", GiB(6));
  folder_.Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(ReadTotalMemory(folder_.path()), 16 * kGiB);
}

TEST(MachineMemory, TheLeastOfAllLimitsIsAvailableAndNamed) {
  MachineMemory memory{.machine = 30, .control_group = 20, .address_space = 10};
  EXPECT_EQ(memory.available(), 10);
  EXPECT_EQ(memory.available_in(), "the limit of address space (ulimit -v)");
  memory.address_space = 40;
  EXPECT_EQ(memory.available(), 20);
  EXPECT_EQ(memory.available_in(), "the control group (container) of this process");
  memory.control_group = std::nullopt;
  EXPECT_EQ(memory.available(), 30);
  EXPECT_EQ(memory.available_in(), "this machine");
}

TEST(MachineMemory, ThisMachineHasMemoryAndLessThanEverything) {
  const int64_t available = ReadMachineMemory().available();
  EXPECT_GT(available, int64_t{1} << 20);
  EXPECT_LT(available, int64_t{1} << 50);
}

TEST_F(MachineMemoryTest, OfTheGroupWithTheLeastLimitIsSaidWhatIsInUseWithoutPagesOfFiles) {
  folder_.Write("proc/self/cgroup", "0::/outer/inner\n");
  EXPECT_EQ(ReadControlGroupMemory(folder_.path()), std::nullopt);
  folder_.Write("sys/fs/cgroup/outer/memory.max", "1000\n");
  folder_.Write("sys/fs/cgroup/outer/memory.current", "600\n");
  folder_.Write("sys/fs/cgroup/outer/memory.stat", "anon 450\nactive_file 20\ninactive_file 100\n");
  folder_.Write("sys/fs/cgroup/outer/inner/memory.max", "2000\n");
  const std::optional<ControlGroupMemory> memory = ReadControlGroupMemory(folder_.path());
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->limit, 1000);
  EXPECT_EQ(memory->in_use, 480);
}

// Without them a program would run on pages that it has to read again and again.
TEST_F(MachineMemoryTest, PagesOfFilesThatProcessesHaveMappedAreInUse) {
  folder_.Write("proc/self/cgroup", "0::/new\n");
  folder_.Write("sys/fs/cgroup/new/memory.max", "1000\n");
  folder_.Write("sys/fs/cgroup/new/memory.current", "600\n");
  folder_.Write("sys/fs/cgroup/new/memory.stat",
                "anon 300\nfile 300\nshmem 50\nfile_mapped 110\nactive_file 100\ninactive_file 150\n");
  EXPECT_EQ(ReadControlGroupMemory(folder_.path())->in_use, 600 - 250 + (110 - 50)) << "shared memory is no file's";
  folder_.Write("proc/self/cgroup", "4:memory:/old\n");
  folder_.Write("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "1000\n");
  folder_.Write("sys/fs/cgroup/memory/old/memory.usage_in_bytes", "600\n");
  folder_.Write("sys/fs/cgroup/memory/old/memory.stat",
                "mapped_file 1\nshmem 1\ntotal_shmem 50\ntotal_mapped_file 110\ntotal_active_file 100\n"
                "total_inactive_file 150\n");
  EXPECT_EQ(ReadControlGroupMemory(folder_.path())->in_use, 600 - 250 + (110 - 50));
}

TEST_F(MachineMemoryTest, KillsForWantOfMemoryAreCountedInBothVersions) {
  EXPECT_EQ(ReadOutOfMemoryKills(folder_.path()), 0);
  folder_.Write("proc/self/cgroup", "4:memory:/old\n0::/new\n");
  folder_.Write("sys/fs/cgroup/new/memory.events", "low 0\nhigh 0\nmax 17\noom 2\noom_kill 3\n");
  EXPECT_EQ(ReadOutOfMemoryKills(folder_.path()), 3);
  folder_.Write("sys/fs/cgroup/memory/old/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
  EXPECT_EQ(ReadOutOfMemoryKills(folder_.path()), 7);
}

TEST_F(MachineMemoryTest, AFamilysMemoryIsThatOfItsParentItselfAndItsChildren) {
  folder_.Write("proc/self/status", "Pid:\t20\nPPid:\t10\n");
  folder_.Write("proc/self/task/20/children", "30 ");
  folder_.Write("proc/self/task/21/children", "31 32 ");
  for (const char* process : {"10", "20", "30", "31"}) {
    folder_.Write("proc/" + std::string(process) + "/status", "VmRSS:\t  900 kB\nRssAnon:\t  100 kB\n");
  }
  EXPECT_EQ(ReadProcessMemory(ProcessFamily(folder_.path()), folder_.path()), 4 * 100 * 1024) << "32 has ended";
}

}  // namespace
}  // namespace tessera::base
