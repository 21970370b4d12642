#include "server/workers/worker_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>

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

TEST(WorkerProcessTest, LeavesNoProcessBehind) {
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

}  // namespace
}  // namespace tessera
