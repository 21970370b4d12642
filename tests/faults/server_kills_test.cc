// Kills a server and its workers at random times and at every failpoint, while clients submit, cancel and wait. At the
// end an oracle checks every acknowledged job.
//
// tests/support/fault_runs.h explains the number of kills and the seeds. The tally is appended to the file
// TESSERA_FAULT_TALLY.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/jobs/failpoint.h"
#include "tests/faults/kill_oracle.h"
#include "tests/faults/test_server.h"
#include "tests/support/fault_runs.h"

namespace tessera {
namespace {

constexpr int kJobsBetweenKills = 20;

class ServerKillsTest : public ::testing::Test {
 protected:
  void Prepare(TestServer& server) {
    ASSERT_TRUE(server.Start());
    server.WaitUntilReady();
    ASSERT_NO_FATAL_FAILURE(oracle_.Learn(server));
  }

  // A client that does not know whether its request has arrived repeats it with the same key.
  void Submit(TestServer& server) { Submit(server, static_cast<int>(random_() % KillOracle::kKinds)); }
  void Submit(TestServer& server, int kind) {
    if (unanswered_.empty()) unanswered_ = absl::StrCat("key-", ++keys_, "-", kind);
    const int sent = unanswered_.back() - '0';
    const TestResponse response = server.Call("POST", "/v1/jobs", oracle_.Body(sent), unanswered_);
    if (response.status == 0 || response.status == 503) return;
    ASSERT_EQ(response.status, 202) << response.body;
    unanswered_.clear();
    oracle_.jobs.push_back({.id = std::string(boost::json::parse(response.body).at("id").as_string()), .kind = sent});
    if (random_() % 8 != 0) return;
    oracle_.jobs.back().cancelled = true;  // has no effect if the request is not answered
    server.Call("DELETE", "/v1/jobs/" + oracle_.jobs.back().id);
  }

  // Waits for some time during the work: none at all, possibly while the workers start, or until one of the last jobs
  // begins or ends.
  void WaitForAMoment(TestServer& server) {
    if (random_() % 3 == 0) return;
    const std::string& job =
        oracle_.jobs[oracle_.jobs.size() - 1 - random_() % std::min<size_t>(oracle_.jobs.size(), kJobsBetweenKills)].id;
    const bool to_its_end = random_() % 2 == 0;
    const auto has_come = [&] {
      const std::string status = server.StatusOf(job);
      return status != "queued" && !(to_its_end && status == "running");
    };
    WaitUntil("a moment to disturb", has_come, absl::Minutes(3));
  }

  void Disturb(TestServer& server) {
    const unsigned chance = random_() % 12;
    const std::vector<pid_t> workers = server.Workers();
    if (chance < 6 && !workers.empty()) {
      const bool stops = chance == 0;
      const pid_t worker = workers[random_() % workers.size()];
      if (stops) {
        StopProcess(worker);
      } else {
        kill(worker, SIGKILL);
      }
      ++(stops ? stops_ : worker_kills_);
    } else if (chance < 9) {
      server.Kill();
      ++server_kills_;
      ASSERT_TRUE(server.Start());
    } else if (chance < 11) {
      server.process().Signal(SIGKILL);
      for (const pid_t worker : workers) kill(worker, SIGKILL);
      server.Kill();
      ++kills_of_all_;
      ASSERT_TRUE(server.Start());
    } else {
      EXPECT_EQ(server.Terminate(), 0);
      ++terminations_;
      ASSERT_TRUE(server.Start());
    }
  }

  // Provokes the failpoint. Any job reaches the failpoints that are not mentioned here.
  void Provoke(TestServer& server, absl::string_view point) {
    for (int i = 0; i < kJobsBetweenKills; ++i) ASSERT_NO_FATAL_FAILURE(Submit(server));
    if (absl::StartsWith(point, "fail.")) Submit(server, KillOracle::kFailing);
    if (absl::StartsWith(point, "fail_queued.")) Submit(server, KillOracle::kTooLate);
    // A group whose workers die repeatedly before they have worked is not restarted at once.
    if (absl::StartsWith(point, "group_died.") && IsWorking(server)) {
      for (const pid_t worker : server.Workers()) kill(worker, SIGKILL);
    }
  }

  void DieAt(TestServer& server, const std::string& point) {
    const std::string settings = server.options().settings;
    // Images that are committed with their jobs get their files later and do not reach these failpoints. All other
    // images of the test are committed.
    if (absl::StrContains(point, "_file") && absl::StartsWith(point, "finish.")) {
      absl::StrAppend(&server.options().settings, "committed_image_bytes: 0\n");
    }
    server.options().arguments = {"--no-supervisor", "--die-at", point};
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    int code = 0;
    while (code == 0 && absl::Now() < deadline) {
      bool alive = server.TryStart();
      while (alive && absl::Now() < deadline) {
        ASSERT_NO_FATAL_FAILURE(Provoke(server, point));
        alive = server.Call("GET", "/livez").status == 200;
        // Jobs that still run when a server terminates are given back.
        if (absl::StartsWith(point, "give_back.") && IsWorking(server)) break;
      }
      code = server.Terminate();
    }
    ASSERT_EQ(code, 1000 + SIGKILL) << point << " was not reached";
    ++failpoint_kills_;
    server.options().arguments = {};
    server.options().settings = settings;
    ASSERT_TRUE(server.Start());
  }

  static bool IsWorking(TestServer& server) {
    const TestResponse response = server.Call("GET", "/v1/server");
    return response.status == 200 && boost::json::parse(response.body).at("running_jobs").as_int64() > 0;
  }

  int kills() const { return worker_kills_ + server_kills_ + kills_of_all_ + failpoint_kills_; }

  void Run(const std::string& worker, const std::string& script, const std::vector<std::string>& groups, int kills) {
    std::printf("%d kills\n", kills);
    const absl::Time began = absl::Now();
    TestServer server({.worker = worker, .script = script, .groups = groups});
    ASSERT_NO_FATAL_FAILURE(Prepare(server));
    while (this->kills() < kills) {
      for (int i = 0; i < kJobsBetweenKills; ++i) ASSERT_NO_FATAL_FAILURE(Submit(server));
      WaitForAMoment(server);
      ASSERT_NO_FATAL_FAILURE(Disturb(server));
    }
    ASSERT_NO_FATAL_FAILURE(JudgeAll(server));
    std::printf("killed: workers %d, server %d, all at once %d; stopped workers %d; terminations %d; %s\n",
                worker_kills_, server_kills_, kills_of_all_, stops_, terminations_,
                absl::FormatDuration(absl::Trunc(absl::Now() - began, absl::Milliseconds(100))).c_str());
  }

  void JudgeAll(TestServer& server) {
    while (!unanswered_.empty()) ASSERT_NO_FATAL_FAILURE(Submit(server));
    const KillOracle::Tally tally = oracle_.Judge(server);
    const std::string text = absl::StrCat(tally.Text(oracle_.jobs.size()), " kills ", kills());
    std::printf("%s\n", text.c_str());
    if (const char* file = std::getenv("TESSERA_FAULT_TALLY")) std::ofstream(file, std::ios::app) << text << std::endl;
    EXPECT_EQ(tally.lost, 0);
    EXPECT_EQ(tally.duplicated, 0);
    EXPECT_EQ(tally.torn, 0);
    EXPECT_GT(tally.done, tally.failed);
    EXPECT_EQ(server.Terminate(), 0);
  }

  std::mt19937 random_;
  KillOracle oracle_;
  std::string unanswered_;  // the key of the request to be repeated
  int keys_ = 0;
  int worker_kills_ = 0, server_kills_ = 0, kills_of_all_ = 0, failpoint_kills_ = 0, stops_ = 0, terminations_ = 0;
};

// The seed determines the times and kinds of the faults.
class SeededServerKillsTest : public ServerKillsTest, public ::testing::WithParamInterface<int> {
 protected:
  SeededServerKillsTest() { random_.seed(static_cast<unsigned>(GetParam())); }
};

INSTANTIATE_TEST_SUITE_P(, SeededServerKillsTest, ::testing::ValuesIn(FaultSeeds()), kSeedName);

TEST_P(SeededServerKillsTest, EveryAcknowledgedJobEndsOnceWithItsOwnImage) {
  oracle_.with_pictures = true;
  Run(FAKE_WORKER, "step-time=10 pictures=start", {"{model: TINY, layout: serial}", "{model: TINY, layout: \"cfg=2\"}"},
      FaultKills(12, 30));
}

TEST_P(SeededServerKillsTest, NoFailpointLosesAJob) {
  TestServer server({.worker = FAKE_WORKER,
                     .script = "step-time=10 step2-of-fail=error",
                     .groups = {"{model: TINY, layout: serial}", "{model: TINY, layout: \"cfg=2\"}"},
                     .settings = "drain_time: 1ms\n"});
  ASSERT_NO_FATAL_FAILURE(Prepare(server));
  for (const absl::string_view point : server::Failpoints()) {
    if (absl::StartsWith(point, "sweep.")) continue;  // concerns only jobs that no client waits for
    for (int i = 0; i < kJobsBetweenKills; ++i) ASSERT_NO_FATAL_FAILURE(Submit(server));
    server.Kill();
    ASSERT_NO_FATAL_FAILURE(DieAt(server, std::string(point)));
    if (!absl::StartsWith(point, "record.")) continue;
    // Repeats the failpoint without workers to adopt.
    server.Kill();
    for (const pid_t worker : server.Workers()) kill(worker, SIGKILL);
    ASSERT_NO_FATAL_FAILURE(DieAt(server, std::string(point)));
  }
  ASSERT_NO_FATAL_FAILURE(JudgeAll(server));
}

TEST_F(ServerKillsTest, NoFailpointLeavesAFileOfAJobThatIsNoMore) {
  TestServer server(
      {.worker = FAKE_WORKER, .groups = {"{model: TINY}"}, .settings = "retention: 1s\ncommitted_image_bytes: 0\n"});
  const std::string images = server.folder() + "/data/images";
  for (const char* point : {"sweep.before_commit", "sweep.before_files"}) {
    ASSERT_TRUE(server.Start());
    const std::string job = server.Submit("red apple");
    ASSERT_EQ(server.Ended(job), "done");
    const absl::Time expired = absl::FromUnixSeconds(server.Get(job).at("expires_at").as_int64() + 1);
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(images)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    EXPECT_FALSE(files.empty());
    // Retention counts the time that a server runs, and the server saves it at termination. The first sweep of the next
    // process therefore finds the job expired.
    WaitUntil("it has worked so long", [&] { return absl::Now() >= expired; });
    EXPECT_EQ(server.Terminate(), 0);
    ASSERT_NO_FATAL_FAILURE(DieAt(server, point));
    WaitUntil("no job", [&] { return server.Call("GET", "/v1/jobs/" + job).status == 404; });
    WaitUntil("no file", [&] { return std::ranges::none_of(files, [](const auto& f) { return exists(f); }); });
    EXPECT_EQ(server.Terminate(), 0);
  }
}

TEST_F(ServerKillsTest, AFailpointThatIsNoneIsRefused) {
  TestServer server({.worker = FAKE_WORKER, .groups = {"{model: TINY}"}});
  for (const char* text : {"submit", "submit.begin:", "submit.begin:0", "submit.begin:x", ":3"}) {
    server.options().arguments = {"--no-supervisor", "--die-at", text};
    EXPECT_THAT(server.ErrorsOfStart(), ::testing::AnyOf(::testing::HasSubstr("no failpoint"),
                                                         ::testing::HasSubstr("is not a number of times")))
        << text;
  }
}

TEST_F(ServerKillsTest, TheOracleSeesWhatIsLostDuplicatedOrTorn) {
  TestServer server({.worker = FAKE_WORKER, .groups = {"{model: TINY}"}});
  ASSERT_NO_FATAL_FAILURE(Prepare(server));
  EXPECT_EQ(oracle_.Judge(server).Text(oracle_.jobs.size()),
            "acked 6 done 6 failed 0 cancelled 0 lost 0 duplicated 0 torn 0");
  oracle_.jobs.pop_back();
  EXPECT_EQ(oracle_.Judge(server).duplicated, 1);
  oracle_.jobs.push_back({.id = "job-9-00000000000000000000000000000000"});
  EXPECT_EQ(oracle_.Judge(server).lost, 1);
  oracle_.jobs[0].kind = 1;
  EXPECT_EQ(oracle_.Judge(server).torn, 1);
  EXPECT_EQ(server.Terminate(), 0);
}

#ifdef HAS_REAL_WORKER
TEST_P(SeededServerKillsTest, TheSameWithTheEmbeddedModel) {
  // Replicas of one rank and one thread: with more, the rounding would depend on the other jobs of the batch.
  Run("", "", {"{model: emoji, layout: serial, threads: 1, count: 2}"}, FaultKills(3, 7));
}

TEST_P(SeededServerKillsTest, TheSameWithTheEmbeddedModelOnSeveralRanks) {
  oracle_.levels = 1;  // another group or another batch rounds differently
  Run("", "", {"{model: emoji, layout: \"cfg=2\", threads: 1}", "{model: emoji, layout: \"ulysses=2\", threads: 1}"},
      FaultKills(3, 7));
}
#endif

}  // namespace
}  // namespace tessera
