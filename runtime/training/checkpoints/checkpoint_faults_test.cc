// Full disks and kills at every call that a checkpoint makes to the file system. The calls of this whole program go
// through the functions below.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <set>

#include "tests/support/test_folder.h"
#include "tests/support/training_state.h"

namespace {

// What happens at the call that has that number, from 1; at no call where it is 0.
std::atomic<int> fault_at = 0;
std::atomic<int> calls = 0;
std::atomic<bool> kills = false;  // else the disk is full from then on, for what needs room

bool IsFaulty() {
  const int at = fault_at.load();
  if (at == 0) return false;
  const int call = ++calls;
  return kills ? call == at : call >= at;
}

// Whether the call fails for want of room. Does not return where the fault is a kill.
bool Fails() {
  if (!IsFaulty()) return false;
  if (kills) ::kill(::getpid(), SIGKILL);
  errno = ENOSPC;
  return true;
}

bool IsFile(int file) {
  struct stat about = {};
  return ::fstat(file, &about) == 0 && S_ISREG(about.st_mode);
}

}  // namespace

extern "C" {

ssize_t write(int file, const void* bytes, size_t size) {
  if (IsFile(file) && IsFaulty()) {
    // Half of it gets to the disk.
    const long half = ::syscall(SYS_write, file, bytes, size / 2);
    if (kills) ::kill(::getpid(), SIGKILL);
    if (half > 0) return half;
    errno = ENOSPC;
    return -1;
  }
  return ::syscall(SYS_write, file, bytes, size);
}

int fsync(int file) { return Fails() ? -1 : static_cast<int>(::syscall(SYS_fsync, file)); }

int mkdir(const char* path, mode_t mode) { return Fails() ? -1 : static_cast<int>(::syscall(SYS_mkdir, path, mode)); }

int rename(const char* from, const char* to) {
  return Fails() ? -1 : static_cast<int>(::syscall(SYS_rename, from, to));
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  return Fails() ? -1 : static_cast<int>(::syscall(SYS_renameat, from_folder, from, to_folder, to));
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  return Fails() ? -1 : static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

}  // extern "C"

namespace tessera::runtime {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::IsEmpty;

const CheckpointState kFirst{.step = 1, .json = "{}"}, kSecond{.step = 2, .json = "{}"};

std::set<std::string> NamesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

class CheckpointFaultsTest : public testing::TestWithParam<int> {
 protected:
  CheckpointFaultsTest() { EXPECT_TRUE(WriteOn(topology(), folder_.path(), kFirst, 1).ok()); }

  const Topology& topology() const { return Topologies()[static_cast<size_t>(GetParam())]; }

  TestFolder folder_;
};

TEST_P(CheckpointFaultsTest, ADiskThatFillsUpIsAnErrorThatLeavesNothingAndTheNextSaveSucceeds) {
  int failures = 0;
  for (int at = 1;; ++at) {
    ASSERT_LT(at, 1000);
    calls = 0;
    fault_at = at;
    const absl::Status status = WriteOn(topology(), folder_.path(), kSecond, 2);
    const bool was_reached = calls >= at;
    fault_at = 0;
    if (!was_reached) {
      EXPECT_TRUE(status.ok()) << status;
      break;
    }
    ++failures;
    // Only the last call of all, which makes the new name durable, comes when the checkpoint is already there.
    EXPECT_FALSE(status.ok()) << "call " << at;
    EXPECT_THAT(status.code(), AnyOf(absl::StatusCode::kResourceExhausted, absl::StatusCode::kUnavailable)) << status;
    if (NamesIn(folder_.path()).contains("checkpoint-2")) {
      EXPECT_THAT(ProblemsOn(topology(), folder_ / "checkpoint-2", kSecond, 2), IsEmpty());
      std::filesystem::remove_all(folder_ / "checkpoint-2");
    }
    EXPECT_THAT(NamesIn(folder_.path()), ElementsAre("checkpoint-1")) << "call " << at;
  }
  EXPECT_GT(failures, 10);
  EXPECT_THAT(ProblemsOn(topology(), folder_ / "checkpoint-1", kFirst, 1), IsEmpty());
  EXPECT_THAT(ProblemsOn(topology(), folder_ / "checkpoint-2", kSecond, 2), IsEmpty());
}

TEST_P(CheckpointFaultsTest, AfterAKillAtAnyCallTheLastWholeOneIsReadAndTheNextSaveSucceeds) {
  int kills_seen = 0;
  for (int at = 1;; ++at) {
    ASSERT_LT(at, 1000);
    const pid_t child = ::fork();
    if (child == 0) {
      kills = true;
      calls = 0;
      fault_at = at;
      ::_exit(WriteOn(topology(), folder_.path(), kSecond, 2).ok() ? 0 : 1);
    }
    int exit = 0;
    ASSERT_EQ(::waitpid(child, &exit, 0), child);
    if (WIFEXITED(exit)) {
      EXPECT_EQ(WEXITSTATUS(exit), 0);
      break;
    }
    ASSERT_EQ(WTERMSIG(exit), SIGKILL);
    ++kills_seen;

    const auto found = LatestWhole(folder_.path());
    ASSERT_TRUE(found.ok()) << "call " << at << ": " << found.status();
    EXPECT_THAT(found->passed_over, IsEmpty()) << "call " << at;  // what has the name is whole
    const CheckpointState& state = found->step == 2 ? kSecond : kFirst;
    EXPECT_THAT(ProblemsOn(topology(), found->path, state, static_cast<uint64_t>(state.step)), IsEmpty());
    ASSERT_TRUE(RemoveLeftovers(folder_.path()).ok());
    std::filesystem::remove_all(folder_ / "checkpoint-2");
    EXPECT_THAT(NamesIn(folder_.path()), ElementsAre("checkpoint-1")) << "call " << at;
  }
  EXPECT_GT(kills_seen, 10);
  EXPECT_THAT(ProblemsOn(topology(), folder_ / "checkpoint-2", kSecond, 2), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Topologies, CheckpointFaultsTest, testing::Values(0, 2),
                         [](const auto& info) { return info.param == 0 ? "OneRank" : "TwoRanks"; });

}  // namespace
}  // namespace tessera::runtime
