#include "server/workers/worker_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/test_folder.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);

TEST(WorkerProcessTest, NamesTheProgramThatCannotBeStarted) {
  const auto process = server::WorkerProcess::Start({.executable = "/nonexistent/worker"});
  EXPECT_EQ(process.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(process.status().message()), HasSubstr("'/nonexistent/worker': No such file or directory"));
}

TEST(WorkerProcessTest, NamesTheExitCodeOfAWorkerThatEndsBeforeItListens) {
  const auto process = server::WorkerProcess::Start({.executable = "/bin/false"});
  ASSERT_TRUE(process.ok()) << process.status();
  const absl::StatusOr<int> socket = (*process)->Connect(kTimeout);
  EXPECT_EQ(socket.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(socket.status().message()), HasSubstr("ended with exit code 1"));
}

TEST(WorkerProcessTest, KnowsAllThatTheWorkerSaidOnceItHasEnded) {
  const auto process = server::WorkerProcess::Start({.executable = "/bin/ls"});
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_TRUE((*process)->WaitForExit(kTimeout));
  EXPECT_THAT((*process)->LastOutput(), HasSubstr("--socket"));
}

// Returns the worker's environment variables whose names begin with `begin`.
std::string Variables(const std::string& begin) {
  const TestFolder folder;
  const std::string program = folder.Write("worker", "#!/bin/sh\nexec env\n");
  EXPECT_EQ(chmod(program.c_str(), 0700), 0);
  const auto process = server::WorkerProcess::Start({.executable = program});
  EXPECT_TRUE(process.ok()) << process.status();
  EXPECT_TRUE((*process)->WaitForExit(kTimeout));
  std::string found;
  for (const absl::string_view line : absl::StrSplit((*process)->LastOutput(), '\n')) {
    if (absl::StartsWith(line, begin)) absl::StrAppend(&found, line, "\n");
  }
  return found;
}

TEST(WorkerProcessTest, LetsAGpusMemoryGrowInOnePieceUnlessTheUserSaysOtherwise) {
  EXPECT_EQ(Variables("PYTORCH"), "PYTORCH_ALLOC_CONF=expandable_segments:True\n");
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    setenv(name, "max_split_size_mb:64", 1);
    EXPECT_EQ(Variables("PYTORCH"), absl::StrCat(name, "=max_split_size_mb:64\n"));
    unsetenv(name);
  }
}

TEST(WorkerProcessTest, LetsTheHostsMemoryBeOfLargePagesUnlessTheUserSaysOtherwise) {
  EXPECT_EQ(Variables("GLIBC"), "GLIBC_TUNABLES=glibc.malloc.hugetlb=1\n");
  setenv("GLIBC_TUNABLES", "glibc.malloc.mxfast=64", 1);
  EXPECT_EQ(Variables("GLIBC"), "GLIBC_TUNABLES=glibc.malloc.mxfast=64\n");
  unsetenv("GLIBC_TUNABLES");
}

TEST(WorkerProcessTest, LeavesNoProcess) {
  pid_t pid = 0;
  {
    const auto process = server::WorkerProcess::Start({.executable = FAKE_WORKER});
    ASSERT_TRUE(process.ok()) << process.status();
    pid = (*process)->pid();
    ASSERT_EQ(kill(pid, 0), 0);
  }
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(WorkerProcessTest, NamesTheSignalThatKilledAWorker) {
  const auto process = server::WorkerProcess::Start({.executable = FAKE_WORKER});
  ASSERT_TRUE(process.ok()) << process.status();
  (*process)->Kill();
  ASSERT_TRUE((*process)->WaitForExit(kTimeout));
  EXPECT_EQ((*process)->StateText(), "was killed by signal 9 (Killed)");
}

// The process is killed by signal 9 in both cases. In the first the kernel has meanwhile killed a process for a memory
// limit.
TEST(WorkerProcessTest, SaysThatItRanOutOfMemoryAndNamesTheLimit) {
  for (const bool out_of_memory : {true, false}) {
    const TestFolder folder;
    const std::string group = "sys/fs/cgroup/box/";
    folder.Write("proc/self/cgroup", "0::/box\n");
    folder.Write(group + "memory.max", absl::StrCat(300 << 20, "\n"));
    folder.Write(group + "memory.events", "oom 1\noom_kill 2\n");
    const std::string program = folder.Write(
        "worker", absl::StrCat("#!/bin/sh\nwhile [ ! -e ", folder / "go", " ]; do sleep 0.01; done\nkill -9 $$\n"));
    ASSERT_EQ(chmod(program.c_str(), 0700), 0);
    const auto process = server::WorkerProcess::Start({.executable = program, .system_root = folder.path()});
    ASSERT_TRUE(process.ok()) << process.status();
    if (out_of_memory) folder.Write(group + "memory.events", "oom 2\noom_kill 3\n");
    folder.Write("go", "");
    ASSERT_TRUE((*process)->WaitForExit(kTimeout));
    EXPECT_EQ((*process)->StateText(),
              out_of_memory ? "ran out of memory and was killed by the kernel: the memory limit of its control group "
                              "(container) is 300.0 MiB"
                            : "was killed by signal 9 (Killed)");
  }
}

// How an adopted process ends is not known, but for the kernel's count.
TEST(WorkerProcessTest, SaysOfAnAdoptedWorkerTooThatItRanOutOfMemory) {
  setenv("TESSERA_WORKER", FAKE_WORKER, 1);
  for (const bool out_of_memory : {true, false}) {
    const TestFolder folder;
    folder.Write("proc/self/cgroup", "4:memory:/box\n");
    folder.Write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", absl::StrCat(300 << 20, "\n"));
    folder.Write("sys/fs/cgroup/memory/box/memory.oom_control", "under_oom 0\noom_kill 2\n");
    const auto started = server::WorkerProcess::Start({.executable = FAKE_WORKER});
    ASSERT_TRUE(started.ok()) << started.status();
    ASSERT_TRUE((*started)->Connect(kTimeout).ok());
    const absl::StatusOr<server::WorkerIdentity> identity = (*started)->identity();
    ASSERT_TRUE(identity.ok()) << identity.status();
    const auto adopted = server::WorkerProcess::Adopt(*identity, folder.path());
    ASSERT_TRUE(adopted.ok()) << adopted.status();
    EXPECT_EQ((*adopted)->StateText(), "is running");
    if (out_of_memory) folder.Write("sys/fs/cgroup/memory/box/memory.oom_control", "under_oom 0\noom_kill 3\n");
    ASSERT_EQ(kill((*started)->pid(), SIGKILL), 0);
    ASSERT_TRUE((*adopted)->WaitForExit(kTimeout));
    EXPECT_EQ((*adopted)->StateText(), out_of_memory
                                           ? "ran out of memory and was killed by the kernel: the memory limit of its "
                                             "control group (container) is 300.0 MiB"
                                           : "has ended");
  }
  unsetenv("TESSERA_WORKER");
}

// Without a limit of its group a process is killed when the machine's memory is used up.
TEST(WorkerProcessTest, NamesTheMachinesMemoryWhereNoGroupHasALimit) {
  const TestFolder folder;
  folder.Write("proc/meminfo", "MemTotal:       4194304 kB\n");
  folder.Write("proc/self/cgroup", "0::/box\n");
  folder.Write("sys/fs/cgroup/box/memory.events", "oom_kill 2\n");
  const std::string program = folder.Write(
      "worker", absl::StrCat("#!/bin/sh\nwhile [ ! -e ", folder / "go", " ]; do sleep 0.01; done\nkill -9 $$\n"));
  ASSERT_EQ(chmod(program.c_str(), 0700), 0);
  const auto process = server::WorkerProcess::Start({.executable = program, .system_root = folder.path()});
  ASSERT_TRUE(process.ok()) << process.status();
  folder.Write("sys/fs/cgroup/box/memory.events", "oom_kill 3\n");
  folder.Write("go", "");
  ASSERT_TRUE((*process)->WaitForExit(kTimeout));
  EXPECT_EQ((*process)->StateText(),
            "ran out of memory and was killed by the kernel: the machine's memory is 4.00 GiB");
}

}  // namespace
}  // namespace tessera
