// Tests `tessera serve` whose workers die and which is killed itself, with workers that need no model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tests/faults/test_server.h"
#include "tests/support/picture_of.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ServeFaultsTest : public ::testing::Test {
 protected:
  TestServer& Start(const std::string& script = "", std::vector<std::string> groups = {"{model: TINY}"}) {
    server_ = std::make_unique<TestServer>(TestServerOptions{.worker = FAKE_WORKER, .groups = std::move(groups)});
    server_->options().script = absl::StrCat(script, " gate=", server_->folder(), "/gate");
    EXPECT_TRUE(server_->Start());
    server_->WaitUntilReady();
    return *server_;
  }

  std::string Running(const std::string& prompt) {
    const std::string job = server_->Submit(prompt);
    WaitUntil("running", [&] { return server_->StatusOf(job) == "running"; });
    return job;
  }

  // Returns the image of the same request without faults.
  std::string Undisturbed(const std::string& prompt) {
    TestServer quiet({.worker = FAKE_WORKER, .groups = {"{model: TINY}"}});
    if (!quiet.Start()) return "";
    quiet.WaitUntilReady();
    const std::string job = quiet.Submit(prompt);
    EXPECT_EQ(quiet.Ended(job), "done");
    return PictureOf(quiet.ImageBytes(quiet.Get(job)));
  }

  std::unique_ptr<TestServer> server_;
};

TEST_F(ServeFaultsTest, AJobWhoseWorkerIsKilledIsMadeByTheNextOneAndItsWatcherSeesIt) {
  for (const char* layout : {"serial", "cfg=2"}) {
    TestServer& server = Start("", {absl::StrCat("{model: TINY, layout: \"", layout, "\"}")});
    const std::string job = Running("gated apple");
    HttpTestClient watcher(server.port());
    watcher.Send(absl::StrCat("GET /v1/jobs/", job, "/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    EXPECT_THAT(watcher.ReadUntil("event: started"), HasSubstr("event: started"));
    kill(server.Workers().back(), SIGKILL);
    WaitUntil("restarted", [&] { return server.Group().at("restarts").to_number<int>() == 1; });
    server.Write("gate", "");
    EXPECT_THAT(watcher.ReadUntil("event: done"), AllOf(HasSubstr("event: image"), HasSubstr("event: done")));
    EXPECT_EQ(PictureOf(server.ImageBytes(server.Get(job))), Undisturbed("gated apple")) << layout;
  }
}

TEST_F(ServeFaultsTest, AWorkerThatDiesWithoutWorkIsStartedAgainBeforeTheNextJob) {
  TestServer& server = Start();
  kill(server.Workers().front(), SIGKILL);
  WaitUntil("restarted", [&] { return server.Group().at("restarts").to_number<int>() == 1; });
  EXPECT_EQ(server.Ended(server.Submit("apple")), "done");
  EXPECT_EQ(server.Group().at("restarts").to_number<int>(), 1);
}

TEST_F(ServeFaultsTest, AStoppedWorkerIsReplaced) {
  TestServer& server = Start();
  const std::string job = Running("gated apple");
  StopProcess(server.Workers().front());
  server.Write("gate", "");
  EXPECT_EQ(server.Ended(job), "done");
  EXPECT_EQ(server.Group().at("restarts").to_number<int>(), 1);
}

TEST_F(ServeFaultsTest, AKilledServerLosesNoJob) {
  TestServer& server = Start();
  const std::string done = server.Submit("pear");
  ASSERT_EQ(server.Ended(done), "done");
  std::vector<std::string> jobs = {Running("gated apple")};
  for (int i = 0; i < 3; ++i) jobs.push_back(server.Submit(absl::StrCat("gated ", i)));
  server.Kill();
  server.Write("gate", "");
  ASSERT_TRUE(server.Start());
  for (const std::string& job : jobs) EXPECT_EQ(server.Ended(job), "done");
  EXPECT_EQ(PictureOf(server.ImageBytes(server.Get(jobs[0]))), Undisturbed("gated apple"));
  EXPECT_EQ(PictureOf(server.ImageBytes(server.Get(done))), Undisturbed("pear"));
}

// Steps are long, so each is a separate command, and two steps of a job are sent before the first is answered.
TEST_F(ServeFaultsTest, AJobThatFailsTakesNoStepFromThoseThatJoinedIt) {
  const std::string two_steps = R"(, "num_inference_steps": 2)";
  TestServer& server = Start("step-time=70 step2-of-gated-fail=error");
  // The server first learns that two jobs can share a batch. Whether three can is still unknown when a job fails.
  const std::string longer = Running("gated");
  std::vector<std::string> jobs = {server.Submit("pear", two_steps)};
  server.Write("gate", "");
  ASSERT_EQ(server.Ended(jobs[0]), "done");
  ASSERT_EQ(server.Ended(longer), "done");
  std::filesystem::remove(server.folder() + "/gate");
  const std::string failing = Running("gated-fail");
  for (int i = 0; i < 2; ++i) jobs.push_back(server.Submit("pear", two_steps));
  server.Write("gate", "");
  EXPECT_EQ(server.Ended(failing), "failed");
  for (const std::string& job : jobs) {
    ASSERT_EQ(server.Ended(job), "done");
    EXPECT_EQ(PictureOf(server.ImageBytes(server.Get(job))), PictureOf(server.ImageBytes(server.Get(jobs[0])))) << job;
  }
}

TEST_F(ServeFaultsTest, NoJobIsAcceptedAfterMoreWorkThanTheConfigurationAllows) {
  server_ = std::make_unique<TestServer>(TestServerOptions{
      .worker = FAKE_WORKER, .groups = {"{model: TINY}"}, .settings = "limits: {queued_device_seconds: 1e-9}\n"});
  server_->options().script = absl::StrCat("gate=", server_->folder(), "/gate");
  ASSERT_TRUE(server_->Start());
  server_->WaitUntilReady();
  const std::string job = Running("gated apple");
  const TestResponse refused = server_->Call("POST", "/v1/jobs", R"({"prompt": "pear"})");
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_THAT(refused.body, HasSubstr("\"queue_full\""));
  EXPECT_EQ(refused.Header("retry-after"), "1");
  server_->Write("gate", "");
  EXPECT_EQ(server_->Ended(job), "done");
  EXPECT_EQ(server_->Ended(server_->Submit("pear")), "done") << "nothing is before it";
}

TEST_F(ServeFaultsTest, AStoppedWorkerDoesNotOutliveAKilledServer) {
  TestServer& server = Start();
  const pid_t worker = server.Workers().front();
  StopProcess(worker);
  server.Kill();
  EXPECT_TRUE(WaitUntilGone(worker));
  EXPECT_EQ(server.SocketFolders(), 0u);
}

TEST_F(ServeFaultsTest, TerminationFinishesWhatRunsAndKeepsWhatWaits) {
  TestServer& server = Start("", {"{model: TINY}", "{model: OTHER}"});
  const std::string running = Running("gated apple");
  server.process().Signal(SIGTERM);
  WaitUntil("draining", [&] { return server.Call("GET", "/readyz").status == 503; });
  const TestResponse refused = server.Call("POST", "/v1/jobs", R"({"prompt": "late"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("accepts no more jobs"));
  server.Write("gate", "");
  EXPECT_EQ(server.process().Wait(), 0) << server.process().errors();
  ASSERT_TRUE(server.Start());
  EXPECT_EQ(server.StatusOf(running), "done") << "it was finished before the end";
  // If a worker is killed after its socket folder was created, the folder is left to the next server.
  server.WaitUntilReady();
}

TEST_F(ServeFaultsTest, APoisonJobFailsAloneAndTheOthersAreMade) {
  TestServer& server = Start("step1-of-hemlock=die");
  std::vector<std::string> good = {server.Submit("gated apple")};
  const std::string poison = server.Submit("hemlock");
  for (int i = 0; i < 4; ++i) good.push_back(server.Submit(absl::StrCat("gated ", i)));
  server.Write("gate", "");
  EXPECT_EQ(server.Ended(poison), "failed");
  EXPECT_THAT(boost::json::serialize(server.Get(poison).at("error")),
              AllOf(HasSubstr("was killed by signal 9"), Not(HasSubstr(server.folder()))));
  for (const std::string& job : good) EXPECT_EQ(server.Ended(job), "done");
  EXPECT_EQ(PictureOf(server.ImageBytes(server.Get(good[0]))), Undisturbed("gated apple"));
}

TEST_F(ServeFaultsTest, AStepThatFailsCostsNoNeighbourAStep) {
  TestServer& server = Start("step3-of-gated=error");
  // A batch of two, so that the server need not try the next one beforehand.
  const std::string first = Running("gated apple");
  const std::string second = server.Submit("pear");
  server.Write("gate", "");
  EXPECT_EQ(server.Ended(first), "done");
  EXPECT_EQ(server.Ended(second), "done");
  std::filesystem::remove(server.folder() + "/gate");
  // A fourth step, with both jobs, is sent before the third has failed.
  const std::string failing = Running("gated");
  const std::string innocent = server.Submit("pear");
  server.Write("gate", "");
  EXPECT_EQ(server.Ended(failing), "failed");
  EXPECT_EQ(server.Ended(innocent), "done");
  EXPECT_EQ(server.ImageBytes(server.Get(innocent)), server.ImageBytes(server.Get(second)));
}

TEST_F(ServeFaultsTest, APoisonRequestThatIsSentAgainAndAgainStopsNoOther) {
  TestServer& server = Start("step1-of-hemlock=die");
  std::vector<std::string> good, poison;
  for (int i = 0; i < 3; ++i) {
    poison.push_back(server.Submit("hemlock"));
    good.push_back(server.Submit(absl::StrCat("apple ", i)));
    EXPECT_EQ(server.Ended(good.back()), "done");
  }
  for (const std::string& job : poison) EXPECT_EQ(server.Ended(job), "failed");
  EXPECT_EQ(server.Ended(server.Submit("pear")), "done");
}

TEST_F(ServeFaultsTest, TheDeathsOfOneGroupDoNotDisturbAnother) {
  TestServer& server = Start("step1-of-hemlock=die", {"{model: TINY}", "{model: OTHER}"});
  const std::string running = server.Submit("gated apple", R"(, "model": "other")");
  WaitUntil("a job that runs", [&] { return server.StatusOf(running) == "running"; });
  EXPECT_EQ(server.Ended(server.Submit("hemlock", R"(, "model": "tiny")")), "failed");
  WaitUntil("restarted", [&] { return server.Group(0).at("restarts").to_number<int>() == 3; });
  EXPECT_EQ(server.StatusOf(running), "running");
  server.Write("gate", "");
  EXPECT_EQ(server.Ended(running), "done");
  EXPECT_EQ(server.Group(1).at("restarts").to_number<int>(), 0);
  EXPECT_EQ(server.Terminate(), 0);
}

TEST_F(ServeFaultsTest, ACancelledJobStaysCancelledAcrossDeaths) {
  TestServer& server = Start();
  const std::string running = Running("gated apple");
  const std::string next = server.Submit("pear");
  EXPECT_EQ(server.Call("DELETE", "/v1/jobs/" + running).status, 200);
  kill(server.Workers().front(), SIGKILL);
  EXPECT_EQ(server.Ended(next), "done");
  EXPECT_EQ(server.StatusOf(running), "cancelled");
  server.Kill();
  ASSERT_TRUE(server.Start());
  EXPECT_EQ(server.StatusOf(running), "cancelled");
}

TEST_F(ServeFaultsTest, JobsOfAModelThatIsNoLongerServedFailAndItsImagesStay) {
  TestServer& server = Start("", {"{model: TINY}", "{model: OTHER}"});
  const std::string done = server.Submit("pear", R"(, "model": "other")");
  ASSERT_EQ(server.Ended(done), "done");
  const std::string bytes = server.ImageBytes(server.Get(done));
  const std::string waiting = server.Submit("gated apple", R"(, "model": "other")");
  server.Kill();
  server.options().groups = {"{model: TINY}"};
  ASSERT_TRUE(server.Start());
  EXPECT_EQ(server.Ended(waiting), "failed");
  EXPECT_THAT(boost::json::serialize(server.Get(waiting)), HasSubstr("the model is no longer served"));
  EXPECT_EQ(server.ImageBytes(server.Get(done)), bytes);
}

TEST_F(ServeFaultsTest, AModelThatIsGoneIsNamedAtTheStart) {
  TestServer server({.worker = FAKE_WORKER, .groups = {"{model: TINY-gone}"}});
  EXPECT_THAT(server.ErrorsOfStart(), HasSubstr("tiny-gone"));
  TestServer with_missing({.worker = FAKE_WORKER, .groups = {"{model: TINY}", "{model: TINY-gone}"}});
  ASSERT_TRUE(with_missing.Start());
  with_missing.WaitUntilLogged("tiny-gone");
  EXPECT_EQ(with_missing.Ended(with_missing.Submit("apple")), "done");
}

TEST_F(ServeFaultsTest, AModelThatNoGroupCanLoadTakesNoJobs) {
  TestServer server({.worker = FAKE_WORKER, .script = "load=error", .groups = {"{model: TINY}"}});
  ASSERT_TRUE(server.Start());
  WaitUntil("refused", [&] { return server.Group().at("state") == "refused"; });
  EXPECT_THAT(boost::json::serialize(server.Group().at("reason")), HasSubstr("load fails as its script says"));
  const TestResponse refused = server.Call("POST", "/v1/jobs", R"({"prompt": "apple"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("no worker group serves the model"));
  EXPECT_EQ(server.Terminate(), 0);
}

TEST_F(ServeFaultsTest, AnOrderlyEndDoesNotWaitForThoseWhoFollowQueuedJobs) {
  // Longer than the test waits.
  TestServer server(
      {.worker = FAKE_WORKER, .script = "load=hang", .groups = {"{model: TINY}"}, .settings = "drain_time: 10m\n"});
  ASSERT_TRUE(server.Start());
  const std::string job = server.Submit("apple");
  HttpTestClient watcher(server.port());
  watcher.Send(absl::StrCat("GET /v1/jobs/", job, "/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  EXPECT_THAT(watcher.ReadUntil("event: queued"), HasSubstr("event: queued"));
  EXPECT_EQ(server.Terminate(), 0);
  EXPECT_TRUE(watcher.WaitForEnd());
}

TEST_F(ServeFaultsTest, AnErrorOfARunningGroupIsNoReasonToGiveItUp) {
  TestServer& server = Start("end=error");
  EXPECT_EQ(server.Ended(server.Submit("apple")), "done");
  EXPECT_EQ(server.Ended(server.Submit("pear")), "done");
  EXPECT_NE(server.Group().at("state"), "refused");
}

}  // namespace
}  // namespace tessera
