// Two servers with two groups each share one queue. The servers, the groups and the database are killed in turn while
// clients keep submitting to whichever server answers. At the end the oracle of server_kills_test.cc checks the jobs.
//
// The first half runs with two clients, the second with twice as many. tests/support/fault_runs.h explains the number
// of kills.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/time/steady_time.h"
#include "tests/faults/kill_oracle.h"
#include "tests/faults/shared_servers.h"
#include "tests/support/fault_runs.h"

namespace tessera {
namespace {

constexpr int kSubmitters = 2;      // in the first half
constexpr int64_t kLongQueue = 40;  // above this, clients wait
constexpr int kJobsBetweenKills = 4;

class SharedQueueKillsTest : public testing::TestWithParam<int> {
 protected:
  SharedQueueKillsTest() : servers_(cluster_) {
    oracle_.with_pictures = true;
    for (int i = 0; i < 2; ++i) {
      servers_.Add({.worker = FAKE_WORKER,
                    .script = "step-time=10 pictures=start",
                    .groups = {"{model: TINY, layout: serial, count: 2}"}});
    }
  }

  // Sends one job to a random server until it is acknowledged, always with the same key. So it is one job even if an
  // answer was lost.
  void Submit(std::mt19937& random) {
    const int kind = static_cast<int>(random() % KillOracle::kKinds);
    const std::string key = absl::StrCat("key-", ++keys_);
    TestResponse response;
    WaitUntil("an answer", [&] {
      response = servers_.at(random() % servers_.size()).Call("POST", "/v1/jobs", oracle_.Body(kind), key);
      return response.status != 0 && response.status != 503;
    });
    ASSERT_EQ(response.status, 202) << response.body;
    const KillOracle::Acknowledged job = {.id = std::string(boost::json::parse(response.body).at("id").as_string()),
                                          .kind = kind,
                                          .cancelled = random() % 16 == 0};
    if (job.cancelled) servers_.at(random() % servers_.size()).Call("DELETE", "/v1/jobs/" + job.id);
    const std::lock_guard lock(mutex_);
    oracle_.jobs.push_back(job);
  }

  size_t Acknowledged() {
    const std::lock_guard lock(mutex_);
    return oracle_.jobs.size();
  }

  bool IsQueueLong(TestServer& server) {
    const TestResponse response = server.Call("GET", "/v1/server");
    return response.status == 200 &&
           boost::json::parse(response.body).at("queued_jobs").to_number<int64_t>() > kLongQueue;
  }

  // Kills the next of the servers, their four groups and the database, in turn.
  void KillNext() {
    const int turn = kills_++ % 7;
    if (turn < 2) {
      servers_.at(turn).Kill();
      ASSERT_TRUE(servers_.at(turn).Start());
      ++server_kills_;
    } else if (turn < 6) {
      std::vector<pid_t> workers;
      WaitUntil("a group has workers", [&] {
        workers = servers_.at(static_cast<size_t>(turn - 2) / 2).Workers();
        return !workers.empty();
      });
      ASSERT_FALSE(workers.empty());
      kill(workers[static_cast<size_t>(turn) % workers.size()], SIGKILL);
      ++group_kills_;
    } else {
      cluster_.Kill();
      cluster_.Start();
      ++database_kills_;
    }
  }

  // Returns the number of jobs acknowledged per second.
  double RunUntil(int kills, int submitters) {
    const size_t before = Acknowledged();
    const absl::Duration began = base::SteadyNow();
    std::atomic<bool> ends = false;
    std::vector<std::thread> threads;
    for (int i = 0; i < submitters; ++i) {
      threads.emplace_back([&, seed = GetParam() * 100 + i] {
        std::mt19937 random(static_cast<unsigned>(seed));
        while (!ends) {
          Submit(random);
          WaitUntil("room in the queue", [&] { return ends || !IsQueueLong(servers_.at(random() % 2)); });
        }
      });
    }
    while (kills_ < kills && !HasFailure()) {
      const size_t wanted = Acknowledged() + kJobsBetweenKills;
      WaitUntil("jobs are acknowledged", [&] { return Acknowledged() >= wanted; });
      KillNext();
    }
    ends = true;
    for (std::thread& thread : threads) thread.join();
    return static_cast<double>(Acknowledged() - before) / absl::ToDoubleSeconds(base::SteadyNow() - began);
  }

  PostgresCluster cluster_{/*syncs=*/true};
  SharedServers servers_;
  std::mutex mutex_;
  KillOracle oracle_;  // jobs are guarded by mutex_ while submitters run
  std::atomic<int> keys_ = 0;
  int kills_ = 0, server_kills_ = 0, group_kills_ = 0, database_kills_ = 0;
};

INSTANTIATE_TEST_SUITE_P(, SharedQueueKillsTest, ::testing::ValuesIn(FaultSeeds()), kSeedName);

TEST_P(SharedQueueKillsTest, EveryAcknowledgedJobEndsOnceWithItsOwnImage) {
  const int kills = FaultKills(40, 67);  // a long run has three seeds
  for (size_t i = 0; i < servers_.size(); ++i) ASSERT_TRUE(servers_.at(i).Start());
  servers_.at(0).WaitUntilReady();
  ASSERT_NO_FATAL_FAILURE(oracle_.Learn(servers_.at(0)));
  const double rate = RunUntil(kills / 2, kSubmitters), twice = RunUntil(kills, 2 * kSubmitters);
  if (HasFailure()) return;  // a server may be missing
  const KillOracle::Tally tally = oracle_.Judge(servers_.at(1));
  const std::string text = absl::StrCat(tally.Text(oracle_.jobs.size()), " kills ", kills_);
  std::printf("%s: servers %d, groups %d, database %d; acknowledged in a second by %d clients %.1f, by %d %.1f\n",
              text.c_str(), server_kills_, group_kills_, database_kills_, kSubmitters, rate, 2 * kSubmitters, twice);
  if (const char* file = std::getenv("TESSERA_FAULT_TALLY")) std::ofstream(file, std::ios::app) << text << std::endl;
  EXPECT_EQ(tally.lost, 0);
  EXPECT_EQ(tally.duplicated, 0);
  EXPECT_EQ(tally.torn, 0);
  EXPECT_GT(tally.done, tally.failed);
  for (size_t i = 0; i < servers_.size(); ++i) EXPECT_EQ(servers_.at(i).Terminate(), 0);
}

}  // namespace
}  // namespace tessera
