// A server and its real workers in a control group with a memory limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/machine/machine_memory.h"
#include "tests/faults/limited_group.h"
#include "tests/faults/test_server.h"
#include "tests/support/fault_runs.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kLimit = 300 * kMiB;
constexpr char kTheLimit[] = "control group (container) is 300.0 MiB";

class MemoryLimitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Which pages of programs the group is charged for depends on the other processes that read them first.
    if (!IsLongRun()) GTEST_SKIP() << "only with TESSERA_LONG=1";
    group_ = LimitedGroup::Make(kLimit);
    if (group_ == nullptr) GTEST_SKIP() << "this process may not make a control group with a memory limit";
    server_ = std::make_unique<TestServer>(
        TestServerOptions{.groups = {absl::StrCat("{model: ", EMBEDDED_MODEL, "}")}, .admin = "{port: 0}"});
    ASSERT_TRUE(group_->Enter());
    kills_before_ = base::ReadOutOfMemoryKills();
    const bool started = server_->Start();
    ASSERT_TRUE(group_->Leave());
    ASSERT_TRUE(started);
    server_->WaitUntilReady();
  }
  void TearDown() override {
    EndHog();
    server_.reset();
  }

  // As in the group.
  int64_t Kills() const {
    EXPECT_TRUE(group_->Enter());
    const int64_t kills = base::ReadOutOfMemoryKills() - kills_before_;
    EXPECT_TRUE(group_->Leave());
    return kills;
  }

  // Of pictures with one step.
  TestResponse Submit(int side, int count = 1) {
    return server_->Call("POST", "/v1/jobs",
                         absl::StrCat(R"({"prompt": "apple", "num_inference_steps": 1, "n": )", count, R"(, "size": ")",
                                      side, "x", side, "\"}"));
  }
  std::string Accepted(int side, int count = 1) {
    const TestResponse response = Submit(side, count);
    EXPECT_EQ(response.status, 202) << response.body;
    return response.status == 202 ? std::string(boost::json::parse(response.body).at("id").as_string()) : "";
  }

  // Takes memory in the group until the kernel kills a process, a worker first, and ends.
  void StartHog() {
    for (const pid_t worker : server_->Workers()) {
      ASSERT_TRUE(WriteTo(absl::StrCat("/proc/", worker, "/oom_score_adj"), "1000"));
    }
    hog_ = fork();
    if (hog_ != 0) return;
    if (!group_->Enter()) _exit(1);
    const int64_t before = base::ReadOutOfMemoryKills();
    for (int64_t taken = 0; taken < kLimit && base::ReadOutOfMemoryKills() == before; taken += kMiB) {
      mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    }
    _exit(0);
  }
  void EndHog() {
    if (hog_ <= 0) return;
    kill(hog_, SIGKILL);
    waitpid(hog_, nullptr, 0);
    hog_ = 0;
  }

  void ExpectThatItSaysWhyAWorkerWasKilled() {
    StartHog();
    const std::string said =
        absl::StrCat("ran out of memory and was killed by the kernel: the memory limit of its ", kTheLimit);
    WaitUntil("the log", [&] { return absl::StrContains(server_->process().errors(), said); });
    EXPECT_THAT(server_->process().errors(), Not(HasSubstr("killed by signal")));
    EndHog();
    server_->WaitUntilReady();
    EXPECT_EQ(server_->Ended(Accepted(64)), "done") << "when there is memory again";
  }

  std::unique_ptr<LimitedGroup> group_;
  std::unique_ptr<TestServer> server_;
  int64_t kills_before_ = 0;
  pid_t hog_ = 0;
};

TEST_F(MemoryLimitTest, WhatIsAcceptedIsMadeAndWhatDoesNotFitIsRefused) {
  for (const int side : {512, 1024}) {
    const TestResponse refused = Submit(side);
    EXPECT_EQ(refused.status, 400);
    EXPECT_THAT(refused.body, AllOf(HasSubstr(absl::StrCat("an image of ", side, "x", side)), HasSubstr(kTheLimit)));
  }
  // Several at once, then a larger one: the worker gives back what they took.
  std::vector<std::string> jobs;
  for (const int side : {64, 256, 256}) jobs.push_back(Accepted(side, 2));
  for (const std::string& job : jobs) EXPECT_EQ(server_->Ended(job), "done");
  EXPECT_EQ(server_->Ended(Accepted(320)), "done");
  EXPECT_EQ(Submit(512).status, 400) << "whatever was made before";
  EXPECT_EQ(Kills(), 0);
  EXPECT_EQ(server_->Group().at("restarts").to_number<int>(), 0);
  const std::string metrics = HttpTestClient(server_->admin_port()).Call("GET", "/metrics").body;
  EXPECT_THAT(metrics, AllOf(HasSubstr(absl::StrCat("\ntessera_memory_limit_bytes ", kLimit, "\n")),
                             HasSubstr("\ntessera_out_of_memory_kills_total 0\n")));
}

TEST_F(MemoryLimitTest, AWorkerThatTheKernelKillsRanOutOfMemory) { ExpectThatItSaysWhyAWorkerWasKilled(); }

TEST_F(MemoryLimitTest, SoDidAnAdoptedOne) {
  EXPECT_EQ(server_->Ended(Accepted(320)), "done");
  const std::vector<pid_t> workers = server_->Workers();
  server_->CrashServingProcess(SIGKILL);
  server_->WaitUntilReady();
  ASSERT_EQ(server_->Workers(), workers) << "they are adopted";
  EXPECT_EQ(server_->Ended(Accepted(320)), "done") << "what fitted before";
  ExpectThatItSaysWhyAWorkerWasKilled();
}

}  // namespace
}  // namespace tessera
