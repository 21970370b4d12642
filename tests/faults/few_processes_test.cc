// Tests a server whose user may have only a few processes and threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "tests/faults/test_server.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kDeviceExitCode = 4;

class FewProcessesTest : public ::testing::Test {
 protected:
  // Uses a process of the server's user, which may set the limit even if root lacks the capability.
  static void LimitToOne(pid_t server) {
    const pid_t child = fork();
    if (child == 0) {
      const rlimit one = {1, 1};
      if (geteuid() == 0 && setresuid(kOtherUser, kOtherUser, kOtherUser) != 0) _exit(1);
      _exit(prlimit(server, RLIMIT_NPROC, &one, nullptr) == 0 ? 0 : errno);
    }
    int status = -1;
    waitpid(child, &status, 0);
    ASSERT_EQ(status, 0);
  }

  TestServer server_ = TestServer({.fake_workers = true,
                                   .groups = {"{model: nowhere}"},
                                   .grpc = "{port: 0}",
                                   .admin = "{port: 0}",
                                   .processes = ProcessesInUse() + 30});
};

TEST_F(FewProcessesTest, AServerThatCannotHaveItsThreadsDoesNotStart) {
  EXPECT_THAT(server_.ErrorsOfStart(),
              AllOf(HasSubstr("(RLIMIT_NPROC) is "), HasSubstr("more are needed"), HasSubstr("LimitNPROC=")));
}

TEST_F(FewProcessesTest, AThreadThatCannotBeStartedLaterEndsTheServerWithTheLimit) {
  server_.options().processes += 4000;
  server_.options().arguments = {"--no-supervisor"};
  ASSERT_TRUE(server_.Start());
  LimitToOne(server_.process().pid());
  server_.process().Signal(SIGTERM);
  EXPECT_EQ(server_.process().Wait(), kDeviceExitCode) << "its end takes a thread";
  EXPECT_THAT(server_.process().errors(),
              AllOf(HasSubstr("a thread cannot be started"), HasSubstr("(RLIMIT_NPROC) is 1, ")));
}

}  // namespace
}  // namespace tessera
