// Tests `tessera batch --server` against a real server with fake workers, while both are killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/faults/test_server.h"
#include "tests/front/batch_fixture.h"
#include "tests/support/fault_runs.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RemoteBatchTest : public BatchTest {
 protected:
  RemoteBatchTest() {
    worker_ = "/nowhere/worker";  // no local worker may be started
    model_ = "";
  }

  void Serve(const std::string& script = "step-time=1 step2-of-fail=error", const std::string& settings = "") {
    server_ = std::make_unique<TestServer>(TestServerOptions{
        .worker = FAKE_WORKER, .script = script, .groups = {"{model: TINY, layout: serial}"}, .settings = settings});
    ASSERT_TRUE(server_->Start());
    server_->WaitUntilReady();
  }

  // Serves, and writes 81 items. No worker makes the last one before OpenGate, and it is submitted when others have
  // ended, because a client has at most 64 jobs at once.
  void ServeWithGate() {
    WriteItems(80);
    Write("items.jsonl", Read("items.jsonl") + R"({"prompt": "gated pear", "num_inference_steps": 2})" + "\n");
    Serve(absl::StrCat("step-time=4 step2-of-fail=error gate=", folder_ / "gate"));
  }
  void OpenGate() { Write("gate", ""); }

  std::vector<std::string> OnServer(std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--server", absl::StrCat("http://127.0.0.1:", server_->port())});
    return more;
  }

  // Returns the number of all jobs that the server has ever accepted.
  int64_t Jobs() {
    int64_t jobs = 0;
    std::string after;
    while (true) {
      const TestResponse page = server_->Call("GET", absl::StrCat("/v1/jobs?limit=100", after));
      EXPECT_EQ(page.status, 200) << page.body;
      if (page.status != 200) return -1;
      const boost::json::object list = boost::json::parse(page.body).as_object();
      const boost::json::array& data = list.at("data").as_array();
      jobs += static_cast<int64_t>(data.size());
      const boost::json::value* next = list.if_contains("next");
      if (next == nullptr || !next->is_string()) return jobs;
      after = absl::StrCat("&after=", std::string(next->get_string()));
    }
  }

  // Kills the serving process. Its supervisor starts the next one on the same port. The kill waits until the server is
  // ready, because the supervisor gives up after five deaths before the first output.
  void KillFrontEnd() {
    server_->WaitUntilReady();
    server_->CrashServingProcess(SIGKILL);
  }

  std::unique_ptr<TestServer> server_;
};

TEST_F(RemoteBatchTest, MakesWhatWorkersOfThisMachineMake) {
  WriteItems(40);
  ASSERT_NO_FATAL_FAILURE(Serve());
  EXPECT_EQ(Run("items.jsonl", "remote", OnServer({"--seed", "1"})), 9) << errors_;
  EXPECT_THAT(errors_, HasSubstr("line 18: step2 fails"));
  worker_ = FAKE_WORKER;
  model_ = "tiny";
  EXPECT_EQ(Run("items.jsonl", "local", {"--seed", "1"}), 9) << errors_;
  EXPECT_EQ(FilesOf("remote"), FilesOf("local"));
}

TEST_F(RemoteBatchTest, KillsOfTheClientAndOfTheServerLoseAndRepeatNothing) {
  constexpr int kItems = 120;
  WriteItems(kItems);
  ASSERT_NO_FATAL_FAILURE(Serve("step-time=4 step2-of-fail=error"));
  EXPECT_EQ(Run("items.jsonl", "undisturbed", OnServer({"--seed", "1"})), 9) << errors_;
  EXPECT_EQ(Jobs(), kItems);
  std::mt19937 random(1);
  for (int kills = FaultKills(6, 40); kills > 0; --kills) {
    const std::unique_ptr<ChildProcess> process = Start("items.jsonl", "out", OnServer({"--seed", "1"}));
    const int64_t more = Journaled("out") + 1 + static_cast<int64_t>(random() % 16);
    WaitUntil("a moment to disturb", [&] { return Journaled("out") >= std::min<int64_t>(more, kItems); });
    if (kills % 2 == 0) {
      KillFrontEnd();
      if (random() % 2 == 0) continue;  // the client's destructor kills it, at some time during its recovery
      const int64_t further = std::min<int64_t>(Journaled("out") + 4, kItems);
      WaitUntil("the client to go on", [&] { return Journaled("out") >= further; });
    }
    process->Signal(SIGKILL);
    process->Wait();
  }
  server_->WaitUntilReady();
  EXPECT_EQ(Run("items.jsonl", "out", OnServer()), 9) << errors_;
  EXPECT_EQ(FilesOf("out"), FilesOf("undisturbed"));
  EXPECT_EQ(Journaled("out"), kItems) << "an item was made twice";
  EXPECT_EQ(Jobs(), 2 * kItems) << "an item was submitted twice";
}

TEST_F(RemoteBatchTest, EndsWhereTheServerStaysAwayAndGoesOnWithTheNextOne) {
  ASSERT_NO_FATAL_FAILURE(ServeWithGate());
  const std::unique_ptr<ChildProcess> process =
      Start("items.jsonl", "out", OnServer({"--seed", "1", "--server-timeout", "1"}));
  WaitUntil("some items", [&] { return Journaled("out") > 3; });
  server_->Kill();
  EXPECT_EQ(process->Wait(), 6) << process->errors();
  EXPECT_THAT(process->errors(), AllOf(HasSubstr("cannot be reached"), HasSubstr("trying again for up to 1s"),
                                       HasSubstr("run the same command again to continue")));
  EXPECT_EQ(Run("items.jsonl", "out", OnServer({"--server-timeout", "0.5"})), 6) << "nor does the next one begin";
  OpenGate();
  ASSERT_TRUE(server_->Start());
  server_->WaitUntilReady();
  EXPECT_EQ(Run("items.jsonl", "out", OnServer()), 9) << errors_;
  EXPECT_EQ(Jobs(), 81);
  EXPECT_EQ(Run("items.jsonl", "undisturbed", OnServer({"--seed", "1"})), 9) << errors_;
  EXPECT_EQ(FilesOf("out"), FilesOf("undisturbed"));
}

TEST_F(RemoteBatchTest, AnInterruptionLeavesItsJobsToTheNextRun) {
  ASSERT_NO_FATAL_FAILURE(ServeWithGate());
  const std::unique_ptr<ChildProcess> process = Start("items.jsonl", "out", OnServer({"--seed", "1"}));
  WaitUntil("some items", [&] { return Journaled("out") > 3; });
  process->Signal(SIGINT);
  EXPECT_EQ(process->Wait(), 130);
  EXPECT_LT(Journaled("out"), 81);
  OpenGate();
  EXPECT_EQ(Run("items.jsonl", "out", OnServer()), 9) << errors_;
  EXPECT_EQ(Journaled("out"), 81);
  EXPECT_EQ(Jobs(), 81);
}

TEST_F(RemoteBatchTest, WaitsForAServerThatHasNoRoom) {
  WriteItems(30);
  ASSERT_NO_FATAL_FAILURE(Serve("step-time=1 step2-of-fail=error", "limits: {queued_jobs: 3}\n"));
  EXPECT_EQ(Run("items.jsonl", "out", OnServer({"--seed", "1"})), 9) << errors_;
  EXPECT_EQ(Manifest("out").size(), 30u);
  EXPECT_EQ(Manifest("out")[17].at("status").as_string(), "failed");
  EXPECT_EQ(Jobs(), 30);
}

TEST_F(RemoteBatchTest, WhatIsTriedAgainIsANewJob) {
  WriteItems(10);
  ASSERT_NO_FATAL_FAILURE(Serve("step-time=0 error-every=4"));
  EXPECT_EQ(Run("items.jsonl", "out", OnServer({"--seed", "1"})), 9) << errors_;
  const int64_t first = Jobs();
  EXPECT_EQ(Run("items.jsonl", "out", OnServer()), 9) << errors_;
  EXPECT_EQ(Jobs(), first) << "what has failed is left alone";
  for (int i = 0; i < 10 && Run("items.jsonl", "out", OnServer({"--retry-failed"})) == 9; ++i) {
  }
  EXPECT_EQ(Run("items.jsonl", "out", OnServer()), 0) << errors_;
  EXPECT_GT(Jobs(), first);
}

TEST_F(RemoteBatchTest, SaysWhatIsWrongBeforeItBegins) {
  WriteItems(3);
  ASSERT_NO_FATAL_FAILURE(Serve());
  EXPECT_EQ(Run("items.jsonl", "out", OnServer({"--replicas", "2"})), 2);
  EXPECT_THAT(errors_, HasSubstr("--replicas cannot be given with --server"));
  EXPECT_EQ(Run("items.jsonl", "out", OnServer({"--layout", "cfg=2"})), 2);
  EXPECT_EQ(Run("items.jsonl", "out", OnServer({"--server-timeout", "0"})), 2);
  EXPECT_THAT(errors_, HasSubstr("valid values are more than 0"));
  EXPECT_EQ(Run("items.jsonl", "out", {"--server-timeout", "9"}), 2);
  EXPECT_THAT(errors_, HasSubstr("are for --server"));
  EXPECT_EQ(Run("items.jsonl", "out", OnServer({"--model", "absent"})), 3);
  EXPECT_THAT(errors_, HasSubstr("tiny"));
  EXPECT_EQ(Run("items.jsonl", "out", OnServer({"--api-key-file", folder_ / "absent"})), 2);
  EXPECT_EQ(Run("items.jsonl", "out", {"--server", "http://127.0.0.1:1", "--server-timeout", "0.1"}), 6);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
  EXPECT_EQ(Run("items.jsonl", "out", OnServer({"--model", "tiny"})), 0) << errors_;
}

}  // namespace
}  // namespace tessera
