#include "base/files/process_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tests/support/test_folder.h"

namespace tessera::base {
namespace {

using ::testing::HasSubstr;

TEST(ProcessLockTest, ASecondHolderIsRefusedWithTheProcessAndHostOfTheFirst) {
  TestFolder folder;
  const std::string path = folder / "run.lock";
  {
    const absl::StatusOr<ProcessLock> first = ProcessLock::Take(path, absl::ZeroDuration());
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_TRUE(ProcessLock::IsTaken(path));
    const absl::Status second = ProcessLock::Take(path, absl::ZeroDuration()).status();
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(second.message(), HasSubstr(absl::StrCat("process ", getpid(), " on host ")));
  }
  EXPECT_FALSE(ProcessLock::IsTaken(path));
  EXPECT_TRUE(ProcessLock::Take(path, absl::ZeroDuration()).ok());
}

TEST(ProcessLockTest, EndsWithAProcessThatIsKilled) {
  TestFolder folder;
  const std::string path = folder / "run.lock";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const absl::StatusOr<ProcessLock> held = ProcessLock::Take(path, absl::ZeroDuration());
    const char done = held.ok() ? '1' : '0';
    if (write(ready[1], &done, 1) == 1) pause();
    _exit(1);
  }
  char taken = 0;
  ASSERT_EQ(read(ready[0], &taken, 1), 1);
  EXPECT_EQ(taken, '1');
  EXPECT_THAT(ProcessLock::Take(path, absl::ZeroDuration()).status().message(),
              HasSubstr(absl::StrCat("process ", child, " on host ")));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(ProcessLock::Take(path, absl::ZeroDuration()).ok());
  close(ready[0]);
  close(ready[1]);
}

TEST(ProcessLockTest, AFileWithOtherTextIsNotRepeatedInTheMessage) {
  TestFolder folder;
  folder.Write("run.lock", "process \x1b[31m");
  const std::string path = folder / "run.lock";
  const absl::StatusOr<ProcessLock> first = ProcessLock::Take(path, absl::ZeroDuration());
  ASSERT_TRUE(first.ok());
  folder.Write("run.lock", "process \x1b[31m");
  EXPECT_EQ(ProcessLock::Take(path, absl::ZeroDuration()).status().message(), "another process is using it");
}

}  // namespace
}  // namespace tessera::base
