// Tests of a job store that several servers share, and of lost connections to its database. job_store_test.cc has the
// contract of every store.
#include "server/jobs/postgres_job_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/substitute.h"
#include "server/jobs/new_job.h"
#include "server/jobs/postgres_schema.h"
#include "tests/jobs/job_oracle.h"
#include "tests/jobs/shared_stores.h"
#include "tests/support/read_bytes.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class PostgresJobStoreTest : public testing::Test {
 protected:
  // Loses the answer to the next commit of a change of this name after it was sent.
  void LoseTheAnswerOf(const std::string& name) {
    stores_.at_point = [this, point = name + ".before_commit",
                        lost = std::make_shared<std::atomic<bool>>(false)](absl::string_view reached) {
      if (reached == point && !lost->exchange(true)) stores_.cluster.LoseAnswers();
    };
  }
  TaskRecord TaskOf(JobStore& store, const JobRecord& job) { return store.Get(kOracleTenant, job.id)->tasks[0]; }

  SharedStores stores_;
};

TEST_F(PostgresJobStoreTest, AServerThatWasGivenUpFinishesNothing) {
  EXPECT_TRUE(AServerThatWasGivenUpFinishesNothing());
}

TEST_F(PostgresJobStoreTest, LeasesAreOfTheTimeOfTheDatabase) { EXPECT_TRUE(LeasesAreOfTheTimeOfTheDatabase()); }

TEST_F(PostgresJobStoreTest, WhatOneServerEndsIsNotSweptEarlyByOneThatHasMeasuredMoreTime) {
  const auto one = stores_.Open("one");
  stores_.clock.Advance(absl::Minutes(30));  // not stored yet
  const auto other = stores_.Open("other");
  const JobRecord job = SharedStores::Submit(*other);
  ASSERT_TRUE(SharedStores::Finish(*other, SharedStores::Claim(*other, job.tasks[0].id)).ok());
  stores_.clock.Advance(absl::Hours(24) - absl::Minutes(1));
  EXPECT_EQ(one->Sweep(100)->jobs, 0);
  EXPECT_EQ(other->Sweep(100)->jobs, 0);
  stores_.clock.Advance(absl::Hours(1) + absl::Minutes(1));
  EXPECT_EQ(other->Sweep(100)->jobs, 1) << "it is kept for the length of a lease more";
}

TEST_F(PostgresJobStoreTest, TimeInWhichAServerWasTakenForGoneCountsForNothing) {
  const auto store = stores_.Open("cut off");
  const JobRecord job = SharedStores::Submit(*store);
  ASSERT_TRUE(SharedStores::Finish(*store, SharedStores::Claim(*store, job.tasks[0].id)).ok());
  stores_.EndLeaseOf("cut off");
  stores_.clock.Advance(absl::Hours(25));
  EXPECT_EQ(store->Sweep(100)->jobs, 0);
  ASSERT_TRUE(store->TryWrite().ok());  // restarts the lease
  stores_.clock.Advance(absl::Hours(24));
  EXPECT_EQ(store->Sweep(100)->jobs, 1);
}

TEST_F(PostgresJobStoreTest, RenewingAServerTakesOverTheTimeOfTheDatabase) {
  const auto store = stores_.Open("one", absl::Seconds(1));
  stores_.cluster.SetCalendar(stores_.database, absl::Hours(24 * 30));
  WaitUntil("its records have the time of the database",
            [&] { return store->Calendar() - store->Now() > absl::Hours(24 * 29); });
}

// Version 1 had only calendar times; one of its servers may still be running.
TEST_F(PostgresJobStoreTest, KeepsWhatHadEndedForItsRetentionFromTheFirstStartOn) {
  {
    const auto connection = PostgresConnection::Open(stores_.database);
    ASSERT_TRUE(connection.ok()) << connection.status();
    ASSERT_EQ(MigratePostgresSchema(**connection, 1), absl::OkStatus());
  }
  const std::string ended =
      "INSERT INTO tessera.jobs(number, token, tenant, tasks, created, expires, state, request, checksum) VALUES($0, "
      "'$0', 'alice', 1, 0, $1, 3, '', ''); INSERT INTO tessera.tasks(number, job, state, ended) VALUES($0, $0, 3, $2)";
  const int64_t hour = 3600000000;
  const auto add = [&](int number, int64_t ended_at, int64_t retention) {
    stores_.cluster.Run(stores_.database, absl::Substitute(ended, number, ended_at + retention, ended_at));
  };
  add(1, -100 * hour, 24 * hour);
  add(2, int64_t{1} << 60, 24 * hour);
  add(3, 0, 2 * hour);
  const auto store = stores_.Open("new");
  const auto sweep = [&](absl::Duration after) {
    stores_.clock.Advance(after);
    return store->Sweep(100)->jobs;
  };
  add(4, 0, 2 * hour);  // by the server of version 1
  EXPECT_EQ(sweep(absl::Hours(2)), 0);
  EXPECT_EQ(sweep(absl::Seconds(1)), 1) << "the one that was kept for two hours";
  EXPECT_EQ(sweep(absl::Hours(22) - absl::Seconds(1)), 0);
  EXPECT_EQ(sweep(absl::Seconds(1)), 2);
  EXPECT_EQ(sweep(absl::Hours(2)), 1) << "what was found after two hours and kept for the retention of this server";
}

TEST_F(PostgresJobStoreTest, CountsUsageFromTheFirstStartAfterVersion2On) {
  {
    const auto connection = PostgresConnection::Open(stores_.database);
    ASSERT_TRUE(connection.ok()) << connection.status();
    ASSERT_EQ(MigratePostgresSchema(**connection, 2), absl::OkStatus());
  }
  const KeyUsage usage = {.key = "alice", .model = "m", .steps = 3, .device_seconds = 0.25};
  ASSERT_EQ(stores_.Open("one")->AddUsage(usage), absl::OkStatus());
  const absl::StatusOr<std::vector<DayUsage>> rows =
      stores_.Open("other")->Usage({.since = absl::CivilDay(), .until = absl::CivilDay(9999)});
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_THAT(*rows, SizeIs(1));
  EXPECT_EQ((*rows)[0].usage, usage);
}

TEST_F(PostgresJobStoreTest, ATaskThatAnotherServerHasIsNoMistakeOfTheCaller) {
  const auto one = stores_.Open("one"), other = stores_.Open("other");
  const uint64_t task = SharedStores::Submit(*one).tasks[0].id;
  SharedStores::Claim(*one, task);
  EXPECT_EQ(other->Claim(task).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(one->Claim(task).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PostgresJobStoreTest, OfServersThatWantTheSameTasksEachIsOnesAlone) {
  constexpr int kServers = 3;
  constexpr int32_t kTasks = 40;
  std::vector<std::unique_ptr<JobStore>> servers;
  for (int i = 0; i < kServers; ++i) servers.push_back(stores_.Open(absl::StrCat("server ", i)));
  const JobRecord job = SharedStores::Submit(*servers[0], kTasks);
  std::atomic<int> claimed = 0, others = 0;
  std::vector<std::thread> threads;
  for (const auto& server : servers) {
    threads.emplace_back([&] {
      for (const TaskRecord& task : job.tasks) {
        const absl::Status status = server->Claim(task.id).status();
        claimed += status.ok() ? 1 : 0;
        others += absl::IsAborted(status) ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(claimed, kTasks);
  EXPECT_EQ(others, (kServers - 1) * kTasks);
}

TEST_F(PostgresJobStoreTest, ServersTellEachOtherWhatTheyDo) {
  const auto one = stores_.Open("one"), other = stores_.Open("other");
  HeardTasks heard;
  other->Observe(&heard);
  const JobRecord job = SharedStores::Submit(*one, 2);
  const uint64_t task = job.tasks[0].id;
  EXPECT_TRUE(heard.Hears(task, TaskState::kQueued, 0));
  TaskAttempt attempt = SharedStores::Claim(*one, task);
  EXPECT_TRUE(heard.Hears(task, TaskState::kRunning, 1));
  EXPECT_TRUE(heard.IsElsewhere(task));
  ASSERT_TRUE(one->GiveBack({attempt}).ok());
  EXPECT_TRUE(heard.Hears(task, TaskState::kQueued, 1));
  attempt = SharedStores::Claim(*one, task);
  ASSERT_TRUE(SharedStores::Finish(*one, attempt).ok());
  EXPECT_TRUE(heard.Hears(task, TaskState::kDone, 2));
  ASSERT_TRUE(one->Cancel(kOracleTenant, job.id).ok());
  EXPECT_TRUE(heard.Hears(job.tasks[1].id, TaskState::kCancelled, 0));
  other->Observe(nullptr);
}

// The backup of docs/operations.md, made while a server works.
TEST_F(PostgresJobStoreTest, ADumpIsTheQueueElsewhere) {
  PostgresJobStoreOptions options = stores_.Options("b", absl::Hours(1));
  JobRecord done, open;
  {
    const auto store = stores_.Open("a");
    done = SharedStores::Submit(*store);
    ASSERT_TRUE(SharedStores::Finish(*store, SharedStores::Claim(*store, done.tasks[0].id)).ok());
    open = SharedStores::Submit(*store, 2);
    SharedStores::Claim(*store, open.tasks[0].id);
    options.address = stores_.cluster.NewDatabase();
    stores_.cluster.Restore(stores_.database, options.address);
  }
  // The lease of the server that was dumped with it must end there too.
  stores_.cluster.Run(options.address, "UPDATE servers SET expires = '-infinity'");
  const auto restored = PostgresJobStore::Open(options);
  ASSERT_TRUE(restored.ok()) << restored.status();
  std::set<uint64_t> queued;
  const absl::StatusOr<Recovery> recovery =
      (*restored)->Recover([&](const QueuedTask& task) { queued.insert(task.id); });
  ASSERT_TRUE(recovery.ok()) << recovery.status();
  EXPECT_EQ(recovery->given_back, 1);
  EXPECT_EQ(queued, (std::set<uint64_t>{open.tasks[0].id, open.tasks[1].id}));
  const absl::StatusOr<JobRecord> found = (*restored)->Get(kOracleTenant, done.id);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(ReadBytes((*restored)->OpenImage(kOracleTenant, found->tasks[0].image->id)).ok());
}

TEST_F(PostgresJobStoreTest, ASubmissionWhoseAnswerIsLostIsOneJob) {
  const auto store = stores_.Open("a");
  LoseTheAnswerOf("submit");
  const JobRecord job = SharedStores::Submit(*store, 2);
  EXPECT_THAT(store->List(kOracleTenant, 10, "")->jobs, SizeIs(1));
  EXPECT_THAT(store->Get(kOracleTenant, job.id)->tasks, SizeIs(2));
  LoseTheAnswerOf("submit");
  const NewJob with_key = {
      .tenant = kOracleTenant, .request = SmallRequest(1), .idempotency = IdempotencyKey{.key = "k", .digest = "d"}};
  const absl::StatusOr<SubmittedJob> first = store->Submit(with_key), second = store->Submit(with_key);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ(first->job.id, second->job.id);
  EXPECT_TRUE(second->existed);
}

TEST_F(PostgresJobStoreTest, ReportsWhoseAnswersAreLostAreMadeOnce) {
  const auto store = stores_.Open("a");
  const JobRecord finished = SharedStores::Submit(*store), failed = SharedStores::Submit(*store);
  LoseTheAnswerOf("claim");
  const TaskAttempt first = SharedStores::Claim(*store, finished.tasks[0].id);
  EXPECT_EQ(first.attempt, 1);
  LoseTheAnswerOf("finish");
  EXPECT_TRUE(SharedStores::Finish(*store, first).ok());
  const TaskRecord done = TaskOf(*store, finished);
  ASSERT_EQ(done.state, TaskState::kDone);
  EXPECT_EQ(*ReadBytes(store->OpenImage(kOracleTenant, done.image->id)), ::tessera::ImageBytesOf(first));
  const TaskAttempt second = SharedStores::Claim(*store, failed.tasks[0].id);
  LoseTheAnswerOf("fail");
  EXPECT_TRUE(store->Fail(second, absl::InternalError("x"), {}).ok());
  EXPECT_EQ(TaskOf(*store, failed).error, absl::InternalError("x"));
}

TEST_F(PostgresJobStoreTest, WhatIsGivenBackWithoutAnAnswerIsQueuedOnceAndBlamedOnce) {
  const auto store = stores_.Open("a");
  const JobRecord job = SharedStores::Submit(*store);
  const TaskAttempt first = SharedStores::Claim(*store, job.tasks[0].id);
  LoseTheAnswerOf("give_back");
  EXPECT_TRUE(store->GiveBack({first}).ok());
  const TaskAttempt second = SharedStores::Claim(*store, job.tasks[0].id);
  LoseTheAnswerOf("group_died");
  const absl::StatusOr<std::vector<Verdict>> verdicts = store->GroupDied({second}, "signal 9");
  ASSERT_TRUE(verdicts.ok()) << verdicts.status();
  EXPECT_EQ((*verdicts)[0].state, TaskState::kQueued);
  EXPECT_EQ(TaskOf(*store, job).blame, (Blame{.deaths = 1, .isolated = true}));
}

TEST_F(PostgresJobStoreTest, ALostDatabaseIsATroubleThatEndsWithIt) {
  const auto store = stores_.Open("a"), other = stores_.Open("other");
  HeardTasks heard;
  other->Observe(&heard);
  const JobRecord before = SharedStores::Submit(*store);
  stores_.cluster.Kill();
  EXPECT_EQ(store->Submit({.tenant = kOracleTenant, .request = SmallRequest(1)}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(store->Get(kOracleTenant, before.id).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(store->trouble().state, StorageState::kUnreachable);
  // The other store notices it although no caller uses it.
  WaitUntil("the other misses it", [&] { return other->trouble().state == StorageState::kUnreachable; });
  EXPECT_FALSE(store->TryWrite().ok());
  stores_.cluster.Start();
  for (JobStore* each : {store.get(), other.get()}) {
    WaitUntil("it is back", [&] { return each->TryWrite().ok() && each->can_write(); });
  }
  EXPECT_TRUE(store->Get(kOracleTenant, before.id).ok());
  EXPECT_TRUE(heard.Hears(SharedStores::Submit(*store).tasks[0].id, TaskState::kQueued, 0));
  other->Observe(nullptr);
}

TEST_F(PostgresJobStoreTest, WhatWasMissedWhileTheLinkWasCutIsHeardAfterwards) {
  const auto store = stores_.Open("a"), other = stores_.Open("other");
  HeardTasks heard;
  other->Observe(&heard);
  // Make a change without a notice, and then lose the connection.
  const uint64_t task = SharedStores::Submit(*store).tasks[0].id;
  EXPECT_TRUE(heard.Hears(task, TaskState::kQueued, 0));
  stores_.cluster.Run(stores_.database, "UPDATE tasks SET attempt = 5");
  stores_.cluster.Run(stores_.database,
                      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "
                      "datname = current_database()");
  EXPECT_TRUE(heard.Hears(task, TaskState::kQueued, 5));
  other->Observe(nullptr);
}

TEST_F(PostgresJobStoreTest, ADatabaseThatIsAnotherOneIsNotUsed) {
  const auto store = stores_.Open("a");
  SharedStores::Submit(*store);
  stores_.cluster.Run(stores_.database,
                      "UPDATE store SET secret = sha256('another'); SELECT pg_terminate_backend(pid) FROM "
                      "pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()");
  EXPECT_FALSE(store->Submit({.tenant = kOracleTenant, .request = SmallRequest(1)}).ok());
  EXPECT_EQ(store->trouble().state, StorageState::kMoved);
}

TEST_F(PostgresJobStoreTest, ServersThatStartTogetherMakeTheTablesOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> opened = 0;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { opened += stores_.Open("a") != nullptr ? 1 : 0; });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(opened, 4);
}

TEST_F(PostgresJobStoreTest, ANewerSchemaIsRefused) {
  stores_.Open("a");
  stores_.cluster.Run(stores_.database, "UPDATE store SET version = version + 1");
  const absl::Status refused = PostgresJobStore::Open(stores_.Options("b", absl::Hours(1))).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("newer version"));
}

TEST_F(PostgresJobStoreTest, AnEmptyDatabaseWithImagesIsRefused) {
  ASSERT_TRUE(stores_.disk.files().Write("00/512-1", "of another database").ok());
  const absl::Status refused = PostgresJobStore::Open(stores_.Options("a", absl::Hours(1))).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("restore it"));
}

TEST_F(PostgresJobStoreTest, AFileThatAnotherServerIsWritingIsNotSwept) {
  const auto one = stores_.Open("one"), other = stores_.Open("other");
  ASSERT_TRUE(stores_.disk.files().Write("00/.tessera-1.tmp", "half of it").ok());
  EXPECT_EQ(one->Sweep(100)->orphans, 0);
  EXPECT_THAT(*stores_.disk.files().List(), SizeIs(1));
  stores_.clock.Advance(absl::Hours(2));  // the process that wrote it has ended
  one->Sweep(100).status().IgnoreError();
  EXPECT_THAT(*stores_.disk.files().List(), SizeIs(0));
}

TEST_F(PostgresJobStoreTest, KeepsItsWordWhateverAnswersGetLost) {
  constexpr int kCommitsBetweenLosses = 17;
  std::atomic<int> commits = 0;
  stores_.at_point = [&](absl::string_view point) {
    if (absl::EndsWith(point, ".before_commit") && ++commits % kCommitsBetweenLosses == 0) {
      stores_.cluster.LoseAnswers();
    }
  };
  const auto store = stores_.Open("a");
  JobOracle oracle;
  JobWorkload workload(*store, /*seed=*/1, [&](const Ack& ack) { oracle.Hear(ack); });
  for (int step = 0; step < 200; ++step) EXPECT_TRUE(workload.Step()) << step;
  EXPECT_TRUE(workload.Drain());
  EXPECT_GT(commits, 5 * kCommitsBetweenLosses);
  const OracleTally tally = oracle.Judge(*store);
  EXPECT_TRUE(tally.clean()) << tally.Line();
  EXPECT_THAT(store->Counts(), testing::ElementsAre(0, 0, tally.done, tally.failed, tally.cancelled, 0))
      << "a job of which nobody was told";
}

TEST_F(PostgresJobStoreTest, KeepsItsWordToSeveralServersAtOnce) {
  constexpr int kServers = 3;
  std::mutex mutex;
  JobOracle oracle;
  std::vector<std::unique_ptr<JobStore>> servers;
  for (int i = 0; i < kServers; ++i) servers.push_back(stores_.Open(absl::StrCat("server ", i)));
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kServers; ++i) {
    threads.emplace_back([&, i] {
      JobWorkload workload(*servers[static_cast<size_t>(i)], static_cast<uint64_t>(i), [&](const Ack& ack) {
        const std::lock_guard lock(mutex);
        oracle.Hear(ack);
      });
      for (int step = 0; step < 60; ++step) failures += workload.Step() ? 0 : 1;
      failures += workload.Drain() ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  const OracleTally tally = oracle.Judge(*servers[0]);
  EXPECT_TRUE(tally.clean()) << tally.Line();
  EXPECT_THAT(servers[1]->Counts(), testing::ElementsAre(0, 0, tally.done, tally.failed, tally.cancelled, 0));
}

}  // namespace
}  // namespace tessera::server
