#include "base/threads/task_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/test_folder.h"

namespace tessera::base {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class TaskLimitsTest : public ::testing::Test {
 protected:
  // A process of user 1000 with 7 threads, another process of that user with 3, and one of another user.
  TaskLimitsTest() {
    folder_.Write("proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\nMax processes  30  60  processes\n");
    folder_.Write("proc/self/uid_map", "         0          0 4294967295\n");
    folder_.Write("proc/self/cgroup", "0::/outer/inner\n");
    Status("0000000000000000", 1000);
    Process(11, 1000, 7);
    Process(12, 1000, 3);
    Process(13, 0, 100);
  }

  void Status(const std::string& capabilities, int user) {
    folder_.Write("proc/self/status",
                  absl::StrCat("Uid:\t", user, "\t", user, "\t0\t0\nThreads:\t7\nCapEff:\t", capabilities, "\n"));
  }
  void Process(int id, int user, int threads) {
    folder_.Write(absl::StrCat("proc/", id, "/status"),
                  absl::StrCat("Uid:\t", user, "\t", user, "\t0\t0\nThreads:\t", threads, "\n"));
  }
  std::vector<TaskLimit> Limits() const { return ReadTaskLimits(folder_.path()); }

  TestFolder folder_;
};

TEST_F(TaskLimitsTest, AUsersProcessesAndThreadsCountTogether) {
  ASSERT_THAT(Limits(), SizeIs(1));
  EXPECT_EQ(Limits()[0].most, 30);
  EXPECT_EQ(Limits()[0].used, 10);
  EXPECT_EQ(CheckTaskLimits(20, Limits()), absl::OkStatus());
  const absl::Status few = CheckTaskLimits(21, Limits());
  EXPECT_EQ(few.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(few.message()),
              AllOf(HasSubstr("RLIMIT_NPROC"), HasSubstr("is 30, of which 10 are in use, and 21 more are needed"),
                    HasSubstr("raise it to 31 or more"), HasSubstr("LimitNPROC=")));
}

TEST_F(TaskLimitsTest, RootOfTheMachineAndWhoHasItsCapabilitiesIsExempt) {
  Status("0000000000000000", 0);
  EXPECT_THAT(Limits(), IsEmpty());
  Status("0000000001000000", 1000);  // CAP_SYS_RESOURCE
  EXPECT_THAT(Limits(), IsEmpty());
  folder_.Write("proc/self/uid_map", "         0       1000          1\n");
  EXPECT_THAT(Limits(), SizeIs(1)) << "capabilities of a user namespace count for nothing";
}

TEST_F(TaskLimitsTest, EachControlGroupOnThePathBinds) {
  folder_.Write("proc/self/limits", "Max processes  unlimited  unlimited  processes\n");
  folder_.Write("sys/fs/cgroup/outer/inner/pids.max", "max\n");
  folder_.Write("sys/fs/cgroup/outer/inner/pids.current", "5\n");
  folder_.Write("sys/fs/cgroup/outer/pids.max", "30\n");
  folder_.Write("sys/fs/cgroup/outer/pids.current", "9\n");
  ASSERT_THAT(Limits(), SizeIs(1));
  EXPECT_EQ(CheckTaskLimits(21, Limits()), absl::OkStatus());
  EXPECT_THAT(std::string(CheckTaskLimits(22, Limits()).message()),
              AllOf(HasSubstr("pids.max"), HasSubstr("is 30, of which 9 are in use"), HasSubstr("--pids-limit")));
}

}  // namespace
}  // namespace tessera::base
