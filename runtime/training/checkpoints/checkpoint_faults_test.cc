// Tests full disks and kills at every call that a checkpoint makes to the file system. All such calls of this program
// go through the functions below.
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
#include <functional>
#include <mutex>
#include <set>

#include "tests/support/test_folder.h"
#include "tests/support/training_state.h"

namespace {

// The number of the call, from 1, at which the fault occurs; 0: no fault.
std::atomic<int> fault_at = 0;
std::atomic<int> calls = 0;
std::atomic<bool> kills = false;  // otherwise the disk is full from then on for calls that need space

bool IsFaulty() {
  const int at = fault_at.load();
  if (at == 0) return false;
  const int call = ++calls;
  return kills ? call == at : call >= at;
}

// Whether the call fails for lack of space. Does not return if the fault is a kill.
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
    // Half of it reaches the disk.
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

int unlinkat(int folder, const char* path, int flags) {
  if (kills && IsFaulty()) ::kill(::getpid(), SIGKILL);  // needs no space
  return static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags));
}

}  // extern "C"

namespace tessera::runtime {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::IsEmpty;

const CheckpointState kFirst{.step = 1, .json = "{}"}, kSecond{.step = 2, .json = "{}"};

std::set<std::string> NamesOfFolder(const std::string& folder) {
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
    // Only the very last call, which makes the new name durable, is made when the checkpoint already has its name.
    EXPECT_FALSE(status.ok()) << "call " << at;
    EXPECT_THAT(status.code(), AnyOf(absl::StatusCode::kResourceExhausted, absl::StatusCode::kUnavailable)) << status;
    if (NamesOfFolder(folder_.path()).contains("checkpoint-2")) {
      EXPECT_THAT(ProblemsOn(topology(), folder_ / "checkpoint-2", kSecond, 2), IsEmpty());
      std::filesystem::remove_all(folder_ / "checkpoint-2");
    }
    EXPECT_THAT(NamesOfFolder(folder_.path()), ElementsAre("checkpoint-1")) << "call " << at;
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
    EXPECT_THAT(found->passed_over, IsEmpty()) << "call " << at;  // a checkpoint with its name is complete
    const CheckpointState& state = found->step == 2 ? kSecond : kFirst;
    EXPECT_THAT(ProblemsOn(topology(), found->path, state, static_cast<uint64_t>(state.step)), IsEmpty());
    ASSERT_TRUE(RemoveLeftovers(folder_.path()).ok());
    std::filesystem::remove_all(folder_ / "checkpoint-2");
    EXPECT_THAT(NamesOfFolder(folder_.path()), ElementsAre("checkpoint-1")) << "call " << at;
  }
  EXPECT_GT(kills_seen, 10);
  EXPECT_THAT(ProblemsOn(topology(), folder_ / "checkpoint-2", kSecond, 2), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Topologies, CheckpointFaultsTest, testing::Values(0, 2),
                         [](const auto& info) { return info.param == 0 ? "OneRank" : "TwoRanks"; });

// A folder with a line of three checkpoints, in which another line begins.
class NewLineFaultsTest : public testing::Test {
 protected:
  // The state from which the new line continues, and how it begins.
  struct NewLine {
    CheckpointState state;
    uint64_t seed = 0;
    std::function<absl::Status(const std::string& folder)> begin;
  };

  NewLineFaultsTest() {
    for (const int64_t step : {1, 2, 3}) {
      EXPECT_TRUE(WriteOn(topology_, Old(), {.step = step, .json = "{}"}, static_cast<uint64_t>(step)).ok());
    }
    folder_.Write("old/adapter-3/adapter_model.safetensors", "");
    folder_.Write("old/adapter-3.safetensors", "");
    folder_.Write("old/log.jsonl", "");
  }

  std::string Old() const { return folder_ / "old"; }
  std::string Run() const { return folder_ / "run"; }
  void BeginAsOld() const {
    std::filesystem::remove_all(Run());
    std::filesystem::copy(Old(), Run(), std::filesystem::copy_options::recursive);
  }

  // One line begins at step 1, whose checkpoint the folder has; the other begins with a checkpoint from elsewhere,
  // whose step the old line has too.
  NewLine Back() const {
    return {.state = {.step = 1, .json = "{}"}, .seed = 1, .begin = [](const std::string& folder) {
              return SetAsideAfter(folder, 1).status();
            }};
  }
  NewLine FromElsewhere() const {
    const CheckpointState head{.step = 2, .json = R"({"of":"another"})"};
    return {.state = head, .seed = 7, .begin = [this, head](const std::string& folder) {
              absl::Status status;
              std::mutex mutex;
              RunRanks(topology_.ranks, [&](ThreadRank& rank) {
                const RankState held = StateOf(topology_, rank.rank(), 7);
                const absl::Status written = WriteHead(folder, head, held.pieces, rank.world()).status();
                const std::lock_guard lock(mutex);
                status.Update(written);
              });
              return status;
            }};
  }

  // Runs what the next start runs first, and returns whether the folder's line is then the new one; otherwise it must
  // be the old one. The line must be complete, and so must the other one if it is to be kept.
  bool GoesOnWith(const NewLine& line, int at) const {
    EXPECT_TRUE(FinishSetAside(Run()).ok()) << "call " << at;
    const absl::StatusOr<FoundCheckpoint> found = LatestWhole(Run());
    EXPECT_TRUE(found.ok()) << "call " << at << ": " << found.status();
    if (!found.ok()) return false;
    EXPECT_THAT(found->passed_over, IsEmpty()) << "call " << at;
    const bool is_new = found->step == line.state.step;
    EXPECT_TRUE(is_new || found->step == 3) << "call " << at << ": step " << found->step;
    std::set<std::string> names = NamesOfFolder(Run());
    if (!is_new && names.contains("branch-1")) {
      EXPECT_THAT(NamesOfFolder(Run() + "/branch-1"), IsEmpty()) << "call " << at;
      names.erase("branch-1");
    }
    if (!is_new) {
      EXPECT_EQ(names, NamesOfFolder(Old())) << "call " << at;
      return false;
    }
    EXPECT_THAT(names, ElementsAre("branch-1", CheckpointName(line.state.step), "log.jsonl")) << "call " << at;
    std::set<std::string> moved = NamesOfFolder(Old());
    moved.erase("log.jsonl");
    if (line.seed == 1) moved.erase("checkpoint-1");
    EXPECT_EQ(NamesOfFolder(Run() + "/branch-1"), moved) << "call " << at;
    EXPECT_THAT(ProblemsOn(topology_, found->path, line.state, line.seed), IsEmpty()) << "call " << at;
    EXPECT_THAT(ProblemsOn(topology_, Run() + "/branch-1/checkpoint-3", {.step = 3, .json = "{}"}, 3), IsEmpty());
    // Rotation counts only the new line.
    const CheckpointState next{.step = line.state.step + 1, .json = "{}"};
    EXPECT_TRUE(WriteOn(topology_, Run(), next, 9).ok());
    EXPECT_TRUE(KeepLast(Run(), 1).ok());
    EXPECT_EQ(LatestWhole(Run())->step, next.step) << "call " << at;
    return true;
  }

  void ExpectOneOfTheTwoLinesAfterAKillAtAnyCall(const NewLine& line) const {
    bool was_new = false;
    int kept = 0, moved = 0;
    for (int at = 1;; ++at) {
      ASSERT_LT(at, 1000);
      BeginAsOld();
      const pid_t child = ::fork();
      if (child == 0) {
        kills = true;
        calls = 0;
        fault_at = at;
        ::_exit(line.begin(Run()).ok() ? 0 : 1);
      }
      int exit = 0;
      ASSERT_EQ(::waitpid(child, &exit, 0), child);
      const bool is_new = GoesOnWith(line, at);
      EXPECT_TRUE(is_new || !was_new) << "call " << at;  // from one call on, the line is the new one
      was_new = is_new;
      ++(is_new ? moved : kept);
      if (!WIFEXITED(exit)) continue;
      EXPECT_EQ(WEXITSTATUS(exit), 0);
      break;
    }
    EXPECT_GT(kept, 3);
    EXPECT_GT(moved, 6);
  }

  void ExpectOneOfTheTwoLinesOnADiskThatIsFullFromAnyCallOn(const NewLine& line) const {
    int kept = 0;
    for (int at = 1;; ++at) {
      ASSERT_LT(at, 1000);
      BeginAsOld();
      calls = 0;
      fault_at = at;
      const absl::Status status = line.begin(Run());
      const bool was_reached = calls >= at;
      fault_at = 0;
      EXPECT_EQ(status.ok(), !was_reached) << status;
      // A failed start leaves nothing.
      if (NamesOfFolder(Run()) == NamesOfFolder(Old())) ++kept;
      const bool is_new = GoesOnWith(line, at);
      if (was_reached) continue;
      EXPECT_TRUE(is_new);
      break;
    }
    EXPECT_GT(kept, 3);
  }

  const Topology topology_ = Topologies()[0];
  TestFolder folder_;
};

TEST_F(NewLineFaultsTest, AKillWhileARunGoesBackLeavesOneOfTheTwoLines) {
  ExpectOneOfTheTwoLinesAfterAKillAtAnyCall(Back());
}

TEST_F(NewLineFaultsTest, AKillWhileARunGoesOnFromElsewhereLeavesOneOfTheTwoLines) {
  ExpectOneOfTheTwoLinesAfterAKillAtAnyCall(FromElsewhere());
}

TEST_F(NewLineFaultsTest, AFullDiskWhileARunGoesBackLeavesOneOfTheTwoLines) {
  ExpectOneOfTheTwoLinesOnADiskThatIsFullFromAnyCallOn(Back());
}

TEST_F(NewLineFaultsTest, AFullDiskWhileARunGoesOnFromElsewhereLeavesOneOfTheTwoLines) {
  ExpectOneOfTheTwoLinesOnADiskThatIsFullFromAnyCallOn(FromElsewhere());
}

}  // namespace
}  // namespace tessera::runtime
