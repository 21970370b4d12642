// Tests the supervisor with this test program, which as a child obeys its message.
#include "server/supervision/supervisor.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

#include "absl/strings/match.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kStillness = 17;  // exit code of a child that was ordered to end

// "say" prints a line; then "abort" crashes, "exit" ends normally, "wait" waits for SIGTERM.
int Obey(const std::string& message) {
  if (absl::StrContains(message, "say")) {
    std::puts("here I am");
    std::fflush(stdout);
  }
  if (absl::StrContains(message, "abort")) {
    signal(SIGABRT, SIG_DFL);
    std::abort();
  }
  if (absl::StrContains(message, "wait")) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    std::puts("waiting");
    std::fflush(stdout);
    int arrived = 0;
    sigwait(&signals, &arrived);
    return kStillness;
  }
  return absl::StrContains(message, "exit") ? 3 : 1;
}

class SupervisorTest : public ::testing::Test {
 protected:
  // Runs children with these messages in turn; the last one is repeated.
  absl::StatusOr<int> Run(const std::vector<std::string>& messages) {
    Supervisor supervisor({.message = [&] { return messages[std::min(started_++, messages.size() - 1)]; },
                           .said =
                               [&](const std::string& line) {
                                 said_.push_back(line);
                                 if (line == "waiting") supervisor.Stop(SIGTERM);
                               },
                           .log = [&](const std::string& text) { log_.push_back(text); }});
    return supervisor.Run();
  }

  size_t started_ = 0;
  std::vector<std::string> said_, log_;
};

TEST_F(SupervisorTest, WhatEndsByItselfStaysEnded) {
  const absl::StatusOr<int> code = Run({"say exit", "say abort"});
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 3);
  EXPECT_THAT(said_, ElementsAre("here I am"));
  EXPECT_THAT(log_, IsEmpty());
}

TEST_F(SupervisorTest, WhatASignalEndsIsStartedAgain) {
  const absl::StatusOr<int> code = Run({"say abort", "say abort", "abort", "exit"});
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 3);
  EXPECT_EQ(started_, 4u);
  EXPECT_THAT(log_, ElementsAre(HasSubstr("signal 6"), HasSubstr("signal 6"), HasSubstr("signal 6")));
}

TEST_F(SupervisorTest, ACrashBeforeItEverServedIsAnError) {
  const absl::StatusOr<int> code = Run({"abort"});
  EXPECT_EQ(code.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(code.status().message(), HasSubstr("before it served"));
  EXPECT_EQ(started_, 1u);
}

TEST_F(SupervisorTest, ACrashAtEveryStartEndsAsAnErrorToo) {
  const absl::StatusOr<int> code = Run({"say abort", "abort"});
  EXPECT_EQ(code.status().code(), absl::StatusCode::kInternal);
  EXPECT_GT(started_, 2u);
}

TEST_F(SupervisorTest, AChildThatIsStoppedIsNotStartedAgain) {
  const absl::StatusOr<int> code = Run({"say abort", "wait", "say abort"});
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, kStillness);
  EXPECT_EQ(started_, 2u);
}

TEST(PauseBeforeRestartTest, IsNoneAtFirstAndNeverLongerThanASecond) {
  EXPECT_EQ(PauseBeforeRestart(1), absl::ZeroDuration());
  for (int crashes = 2; crashes < 1000; ++crashes) {
    EXPECT_GT(PauseBeforeRestart(crashes), absl::ZeroDuration());
    EXPECT_GE(PauseBeforeRestart(crashes), PauseBeforeRestart(crashes - 1));
    EXPECT_LE(PauseBeforeRestart(crashes), absl::Seconds(1));
  }
}

}  // namespace
}  // namespace tessera::server

int main(int argc, char** argv) {
  const auto message = tessera::server::MessageOfSupervisor();
  if (!message.ok()) return 1;
  if (message->has_value()) return tessera::server::Obey(**message);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
