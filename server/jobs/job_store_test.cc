// Tests of every job store's contract, on SQLite and on PostgreSQL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/fields/field_error.h"
#include "server/api/job.h"
#include "server/jobs/new_job.h"
#include "server/jobs/postgres_job_store.h"
#include "server/jobs/sqlite.h"
#include "server/jobs/sqlite_job_store.h"
#include "server/jobs/store_rules.h"
#include "tests/jobs/fake_clock.h"
#include "tests/jobs/faulty_disk.h"
#include "tests/jobs/job_oracle.h"
#include "tests/jobs/job_workload.h"
#include "tests/jobs/postgres_cluster.h"
#include "tests/support/read_bytes.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kTenant[] = "alice";
constexpr absl::Duration kRetention = absl::Hours(1);

enum class Kept : uint8_t { kInSqlite, kInSqliteWithImages, kInPostgres };

// All tests of the process share the cluster; each test has a separate database.
PostgresCluster& Cluster() {
  static PostgresCluster cluster(/*syncs=*/false);
  return cluster;
}

class JobStoreTest : public testing::TestWithParam<Kept> {
 protected:
  JobStoreTest() {
    if (GetParam() == Kept::kInPostgres) database_ = Cluster().NewDatabase();
    Reopen();
  }

  absl::StatusOr<std::unique_ptr<JobStore>> Open() {
    if (GetParam() == Kept::kInPostgres) {
      return PostgresJobStore::Open({.address = database_,
                                     .name = "test",
                                     .files = &disk_.files(),
                                     .clock = &clock_,
                                     .lease = absl::Minutes(1),
                                     .retention = kRetention});
    }
    return SqliteJobStore::Open({.path = "jobs",
                                 .files = &disk_.files(),
                                 .clock = &clock_,
                                 .vfs = disk_.vfs(),
                                 .retention = kRetention,
                                 .most_committed_bytes = GetParam() == Kept::kInSqliteWithImages ? 1000u : 0u});
  }

  // Opens the store without reading its queue.
  void OpenAgain() {
    store_.reset();
    absl::StatusOr<std::unique_ptr<JobStore>> store = Open();
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    queue_.clear();
  }

  Recovery Reopen() {
    OpenAgain();
    const absl::StatusOr<Recovery> recovery =
        store_->Recover([this](const QueuedTask& task) { queue_.push_back(task.id); });
    EXPECT_TRUE(recovery.ok()) << recovery.status();
    return *recovery;
  }

  JobRecord Submit(int32_t count = 1, const std::string& tenant = kTenant) {
    const absl::StatusOr<SubmittedJob> job = store_->Submit({.tenant = tenant, .request = SmallRequest(count)});
    EXPECT_TRUE(job.ok()) << job.status();
    return job->job;
  }

  absl::StatusOr<SubmittedJob> SubmitWithKey(const std::string& key, const std::string& digest,
                                             const std::string& tenant = kTenant) {
    return store_->Submit(
        {.tenant = tenant, .request = SmallRequest(1), .idempotency = IdempotencyKey{.key = key, .digest = digest}});
  }

  TaskAttempt Claim(uint64_t task) {
    const absl::StatusOr<ClaimedTask> claimed = store_->Claim(task);
    EXPECT_TRUE(claimed.ok()) << claimed.status();
    return claimed.ok() ? claimed->claim : TaskAttempt{};
  }

  absl::Status Finish(const TaskAttempt& attempt, const std::string& bytes = "image") {
    return store_->Finish(attempt, bytes, {.width = 64, .height = 64, .layout = "serial"});
  }

  TaskRecord TaskOf(const JobRecord& job, size_t index = 0) {
    const absl::StatusOr<JobRecord> found = store_->Get(job.tenant, job.id);
    EXPECT_TRUE(found.ok()) << found.status();
    return found->tasks[index];
  }

  int64_t Count(TaskState state) { return store_->Counts()[static_cast<size_t>(state)]; }

  // Runs SQL on the database without the store's knowledge.
  void Tamper(const std::string& sql) {
    store_.reset();
    if (GetParam() == Kept::kInPostgres) return Cluster().Run(database_, sql);
    absl::StatusOr<std::unique_ptr<SqliteDatabase>> database =
        SqliteDatabase::Open({.path = "jobs", .vfs = disk_.vfs()});
    ASSERT_TRUE(database.ok()) << database.status();
    const absl::Status status = (*database)->Execute(sql.c_str());
    ASSERT_TRUE(status.ok()) << status;
  }
  // Sets how far the calendar is ahead of its value at the beginning, and reopens the store.
  void SetCalendar(absl::Duration ahead) {
    clock_.Jump(ahead - std::exchange(ahead_, ahead));
    store_.reset();
    if (GetParam() == Kept::kInPostgres) Cluster().SetCalendar(database_, ahead);
  }
  // Moves the calendar so that no day ends during a test.
  void MakeItNoon() {
    const absl::Time now = store_->Calendar();
    const absl::CivilDay today = absl::ToCivilDay(now, absl::UTCTimeZone());
    SetCalendar(absl::FromCivil(today + 1, absl::UTCTimeZone()) + absl::Hours(12) - now);
    Reopen();
  }
  static UsageQuery AllDays(const std::optional<std::string>& key) {
    return {.key = key, .since = absl::CivilDay(), .until = absl::CivilDay(9999)};
  }
  std::string ZeroByte() const { return GetParam() == Kept::kInPostgres ? "'\\x00'" : "x'00'"; }

  FaultyDisk disk_;
  FakeClock clock_;
  PostgresAddress database_;
  std::unique_ptr<JobStore> store_;
  std::vector<uint64_t> queue_;  // as of the last Reopen
  absl::Duration ahead_;         // of the calendar
};

INSTANTIATE_TEST_SUITE_P(, JobStoreTest, testing::Values(Kept::kInSqlite, Kept::kInSqliteWithImages, Kept::kInPostgres),
                         [](const auto& info) {
                           return info.param == Kept::kInSqlite     ? "Sqlite"
                                  : info.param == Kept::kInPostgres ? "Postgres"
                                                                    : "SqliteWithImages";
                         });

TEST_P(JobStoreTest, GivesAJobBackAsItWasSubmitted) {
  JobRequest request = SmallRequest(3);
  request.parameters.negative_prompt = "";
  request.parameters.seed = ~uint64_t{0} - 1;
  request.parameters.options.skip_layers = {.layers = {7, 8}, .scale = 1.5, .start = 0, .stop = 0.5};
  request.output = {.format = ImageFormat::kWebp, .quality = 80};
  request.priority = -3;
  request.timeout = absl::Seconds(90);
  request.user = "u-1";
  const absl::Time now = store_->Now();
  const absl::StatusOr<SubmittedJob> submitted =
      store_->Submit({.tenant = kTenant, .request = request, .trace_parent = "00-ab-cd-01"});
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  Reopen();
  const absl::StatusOr<JobRecord> job = store_->Get(kTenant, submitted->job.id);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->request->parameters.prompt, request.parameters.prompt);
  EXPECT_EQ(job->request->parameters.negative_prompt, request.parameters.negative_prompt);
  EXPECT_EQ(job->request->parameters.options, request.parameters.options);
  EXPECT_EQ(job->request->parameters.seed, request.parameters.seed);
  EXPECT_EQ(job->request->output, request.output);
  EXPECT_EQ(job->request->priority, -3);
  EXPECT_EQ(job->request->user, "u-1");
  EXPECT_EQ(job->trace_parent, "00-ab-cd-01");
  EXPECT_EQ(job->created, now);
  EXPECT_EQ(job->deadline, now + absl::Seconds(90));
  EXPECT_THAT(job->tasks, SizeIs(3));
  EXPECT_EQ(StateOf(*job), JobState::kQueued);
}

TEST_P(JobStoreTest, GivesEachImageOfAJobASeedOfItsOwn) {
  const JobRecord job = Submit(3);
  for (size_t index = 0; index < 3; ++index) {
    const absl::StatusOr<ClaimedTask> claimed = store_->Claim(job.tasks[index].id);
    ASSERT_TRUE(claimed.ok()) << claimed.status();
    EXPECT_EQ(claimed->parameters.seed, 7 + index);
  }
}

TEST_P(JobStoreTest, KeepsTheFileOfAFinishedImage) {
  const JobRecord job = Submit();
  ASSERT_TRUE(Finish(Claim(job.tasks[0].id), "the picture").ok());
  Reopen();
  const TaskRecord task = TaskOf(job);
  EXPECT_EQ(task.state, TaskState::kDone);
  const absl::StatusOr<std::string> image = ReadBytes(store_->OpenImage(kTenant, task.image->id));
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(*image, "the picture");
}

TEST_P(JobStoreTest, AddsUpTheUsageOfEachDayKeyAndModelAcrossStarts) {
  MakeItNoon();
  const absl::CivilDay today = absl::ToCivilDay(store_->Calendar(), absl::UTCTimeZone());
  const KeyUsage image = {.key = "alice", .model = "tiny", .images = 1, .steps = 8, .device_seconds = 1.5};
  const auto finish = [&](const TaskAttempt& attempt, const KeyUsage& usage) {
    return store_->Finish(attempt, "image", {.width = 64, .height = 64, .layout = "serial", .usage = usage});
  };
  const JobRecord job = Submit(4);
  const TaskAttempt first = Claim(job.tasks[0].id);
  ASSERT_TRUE(finish(first, image).ok());
  finish(first, image).IgnoreError();  // the answer of the first call may have been lost
  const TaskAttempt given_back = Claim(job.tasks[1].id);
  ASSERT_TRUE(store_->GiveBack({given_back}).ok());
  const TaskAttempt again = Claim(job.tasks[1].id);
  EXPECT_FALSE(finish(given_back, image).ok());
  Reopen();
  const TaskAttempt retried = Claim(again.task);
  ASSERT_TRUE(finish(retried, image).ok());
  ASSERT_TRUE(finish(Claim(job.tasks[2].id), {}).ok()) << "nothing to count";
  ASSERT_TRUE(store_->AddUsage({.key = "alice", .model = "tiny", .steps = 3, .device_seconds = 0.25}).ok());
  ASSERT_TRUE(store_->AddUsage({.key = "bob", .model = "tiny", .steps = 1}).ok());
  ASSERT_TRUE(store_->AddUsage({.key = "alice", .model = "large", .steps = 2}).ok());
  Reopen();
  const auto rows = [&](const UsageQuery& query) {
    const absl::StatusOr<std::vector<DayUsage>> found = store_->Usage(query);
    EXPECT_TRUE(found.ok()) << found.status();
    std::vector<KeyUsage> usage;
    for (const DayUsage& row : *found) {
      EXPECT_EQ(row.day, today);
      usage.push_back(row.usage);
    }
    return usage;
  };
  const KeyUsage large = {.key = "alice", .model = "large", .steps = 2},
                 tiny = {.key = "alice", .model = "tiny", .images = 2, .steps = 19, .device_seconds = 3.25},
                 other = {.key = "bob", .model = "tiny", .steps = 1};
  EXPECT_THAT(rows({.since = today, .until = today}), ElementsAre(large, tiny, other));
  EXPECT_THAT(rows({.key = "bob", .since = today - 9, .until = today + 9}), ElementsAre(other));
  EXPECT_THAT(rows({.since = today + 1, .until = today + 9}), IsEmpty());
  EXPECT_THAT(rows({.since = today - 9, .until = today - 1}), IsEmpty());
}

TEST_P(JobStoreTest, CountsTheUsageOfTheNextDayApart) {
  MakeItNoon();
  const absl::CivilDay today = absl::ToCivilDay(store_->Calendar(), absl::UTCTimeZone());
  ASSERT_TRUE(store_->AddUsage({.key = "alice", .model = "tiny", .steps = 1}).ok());
  SetCalendar(ahead_ + absl::Hours(24));
  Reopen();
  ASSERT_TRUE(store_->AddUsage({.key = "alice", .model = "tiny", .steps = 2}).ok());
  const absl::StatusOr<std::vector<DayUsage>> rows = store_->Usage({.since = today, .until = today + 2});
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_THAT(*rows, SizeIs(2));
  EXPECT_EQ((*rows)[0].day, today);
  EXPECT_EQ((*rows)[1].day, today + 1);
  EXPECT_EQ((*rows)[1].usage.steps, 2);
}

TEST_P(JobStoreTest, CountsTheUsageOfAFailureOnceAndWithTheFailure) {
  const KeyUsage usage = {.key = kTenant, .model = "tiny", .steps = 3, .device_seconds = 0.5};
  const JobRecord job = Submit(2);
  const TaskAttempt given_back = Claim(job.tasks[0].id), failed = Claim(job.tasks[1].id);
  ASSERT_TRUE(store_->GiveBack({given_back}).ok());
  EXPECT_FALSE(store_->Fail(given_back, absl::InternalError("late"), usage).ok());
  ASSERT_TRUE(store_->Fail(failed, absl::InternalError("x"), usage).ok());
  store_->Fail(failed, absl::InternalError("x"), usage).IgnoreError();  // as after a lost answer
  Reopen();
  const absl::StatusOr<std::vector<DayUsage>> rows = store_->Usage(AllDays(kTenant));
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_THAT(*rows, SizeIs(1));
  EXPECT_EQ((*rows)[0].usage, usage);
}

TEST_P(JobStoreTest, StoresAnImageWhoseTimeIsNotANumber) {
  const JobRecord job = Submit(4);
  for (size_t i = 0; const double seconds : {std::nan(""), HUGE_VAL, -1.0, 0.5}) {
    const KeyUsage usage = {.key = kTenant, .model = "tiny", .images = 1, .device_seconds = seconds};
    const ImageOrigin origin = {.width = 64, .height = 64, .layout = "serial", .usage = usage};
    EXPECT_EQ(store_->Finish(Claim(job.tasks[i++].id), "image", origin), absl::OkStatus()) << seconds;
  }
  const absl::StatusOr<std::vector<DayUsage>> rows = store_->Usage(AllDays(kTenant));
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_THAT(*rows, SizeIs(1));
  EXPECT_EQ((*rows)[0].usage.images, 4);
  EXPECT_EQ((*rows)[0].usage.device_seconds, 1e8 + 0.5);
}

TEST_P(JobStoreTest, ShowsNoUsageToAKeyWithoutAName) {
  ASSERT_TRUE(store_->AddUsage({.key = "alice", .model = "tiny", .steps = 1}).ok());
  EXPECT_THAT(*store_->Usage(AllDays("")), IsEmpty());
  EXPECT_THAT(*store_->Usage(AllDays(std::nullopt)), SizeIs(1));
}

TEST_P(JobStoreTest, KeepsTheUsageOfTheLastDaysThatHaveAny) {
  std::vector<std::string> rows;
  for (int64_t day = 0; day < kUsageDays + 1; ++day) {  // every second day from 1970 on
    for (const char* key : {"alice", "bob"}) rows.push_back(absl::StrCat("(", 2 * day, ",'", key, "','m',0,1,4,0)"));
  }
  Tamper(absl::StrCat("INSERT INTO usage(day, tenant, model, shard, images, steps, device_microseconds) VALUES",
                      absl::StrJoin(rows, ",")));
  Reopen();
  ASSERT_TRUE(store_->Sweep(100).ok());
  const absl::StatusOr<std::vector<DayUsage>> kept = store_->Usage(AllDays("bob"));
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_THAT(*kept, SizeIs(kUsageDays));
  EXPECT_EQ(kept->front().day, absl::CivilDay(1970, 1, 3));
  // The next day that is used replaces the oldest one, at the first sweep of another day.
  ASSERT_TRUE(store_->AddUsage({.key = "alice", .model = "m", .images = 1}).ok());
  SetCalendar(ahead_ + absl::Hours(24));
  Reopen();
  ASSERT_TRUE(store_->Sweep(100).ok());
  EXPECT_THAT(*store_->Usage(AllDays("bob")), SizeIs(kUsageDays - 1));
  EXPECT_THAT(*store_->Usage(AllDays("alice")), SizeIs(kUsageDays));
}

TEST_P(JobStoreTest, BringsImagesIntoFilesOfTheirOwn) {
  const bool committed = GetParam() == Kept::kInSqliteWithImages;
  const JobRecord job = Submit(3);
  for (const TaskRecord& task : job.tasks) {
    ASSERT_TRUE(Finish(Claim(task.id), absl::StrCat("picture ", task.index)).ok());
  }
  const std::string large(1001, 'x');
  const JobRecord with_file = Submit();
  ASSERT_TRUE(Finish(Claim(with_file.tasks[0].id), large).ok());
  EXPECT_THAT(*disk_.files().List(), SizeIs(committed ? 1 : 4));
  const auto expect_images = [&] {
    for (const TaskRecord& task : job.tasks) {
      EXPECT_EQ(*ReadBytes(store_->OpenImage(kTenant, TaskOf(job, static_cast<size_t>(task.index)).image->id)),
                absl::StrCat("picture ", task.index));
    }
    EXPECT_EQ(*ReadBytes(store_->OpenImage(kTenant, TaskOf(with_file).image->id)), large);
    EXPECT_EQ(store_->result_bytes(), 3 * 9 + 1001);
  };
  expect_images();
  EXPECT_EQ(*store_->SettleImages(2), committed ? 2 : 0);
  EXPECT_THAT(*disk_.files().List(), SizeIs(committed ? 3 : 4));
  expect_images();
  Reopen();
  EXPECT_EQ(*store_->SettleImages(2), committed ? 1 : 0);
  EXPECT_EQ(*store_->SettleImages(2), 0);
  EXPECT_THAT(*disk_.files().List(), SizeIs(4));
  expect_images();
}

TEST_P(JobStoreTest, ForgetsImagesThatAreNotInFilesYet) {
  const JobRecord job = Submit();
  ASSERT_TRUE(Finish(Claim(job.tasks[0].id)).ok());
  clock_.Advance(kRetention);
  EXPECT_EQ(store_->Sweep(100)->jobs, 1);
  EXPECT_EQ(*store_->SettleImages(10), 0);
  EXPECT_THAT(*disk_.files().List(), IsEmpty());
  EXPECT_EQ(store_->result_bytes(), 0);
}

TEST_P(JobStoreTest, ReadsAnImageOnWhileItIsBroughtIntoAFileOfItsOwn) {
  const JobRecord job = Submit();
  ASSERT_TRUE(Finish(Claim(job.tasks[0].id), "the picture").ok());
  const absl::StatusOr<base::SharedBytes> image = store_->OpenImage(kTenant, TaskOf(job).image->id);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ((*image)->size(), 11u);
  EXPECT_EQ(*(*image)->Read(0, 4), "the ");
  ASSERT_TRUE(store_->SettleImages(1).ok());
  EXPECT_EQ(*(*image)->Read(4, 4), "pict");
  EXPECT_EQ(*(*image)->Read(8, 100), "ure");
  EXPECT_EQ(*(*image)->Read(11, 1), "");
}

TEST_P(JobStoreTest, SaysSoWhenAnImagesFileWasDamaged) {
  const JobRecord job = Submit();
  ASSERT_TRUE(Finish(Claim(job.tasks[0].id), "the picture").ok());
  const TaskRecord task = TaskOf(job);
  ASSERT_TRUE(store_->SettleImages(1).ok());
  (*disk_.BytesOf("results/" + task.image->file))[3] ^= 1;
  EXPECT_EQ(ReadBytes(store_->OpenImage(kTenant, task.image->id)).status().code(), absl::StatusCode::kDataLoss);
}

TEST_P(JobStoreTest, RefusesTheReportOfAnAttemptThatWasGivenUp) {
  const JobRecord job = Submit();
  const TaskAttempt old = Claim(job.tasks[0].id);
  ASSERT_TRUE(store_->GiveBack({old}).ok());
  const TaskAttempt current = Claim(job.tasks[0].id);
  EXPECT_EQ(current.attempt, old.attempt + 1);
  EXPECT_EQ(Finish(old).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->Fail(old, absl::InternalError("late"), {}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Finish(current).ok());
}

TEST_P(JobStoreTest, FinishesATaskOnce) {
  const JobRecord job = Submit();
  const TaskAttempt attempt = Claim(job.tasks[0].id);
  ASSERT_TRUE(Finish(attempt, "first").ok());
  EXPECT_EQ(Finish(attempt, "second").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(*ReadBytes(store_->OpenImage(kTenant, TaskOf(job).image->id)), "first");
}

TEST_P(JobStoreTest, ClaimsATaskOnce) {
  const JobRecord job = Submit();
  Claim(job.tasks[0].id);
  EXPECT_EQ(store_->Claim(job.tasks[0].id).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(JobStoreTest, GivesTheSameJobForTheSameKeyAndBody) {
  const absl::StatusOr<SubmittedJob> first = SubmitWithKey("k", "body");
  Reopen();
  const absl::StatusOr<SubmittedJob> second = SubmitWithKey("k", "body");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(second->existed);
  EXPECT_EQ(second->job.id, first->job.id);
  EXPECT_EQ(Count(TaskState::kQueued), 1);
}

TEST_P(JobStoreTest, RefusesAKnownKeyWithAnotherBody) {
  ASSERT_TRUE(SubmitWithKey("k", "body").ok());
  EXPECT_EQ(SubmitWithKey("k", "other body").status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_P(JobStoreTest, KeepsTheKeysOfTenantsApart) {
  ASSERT_TRUE(SubmitWithKey("k", "body", "alice").ok());
  const absl::StatusOr<SubmittedJob> other = SubmitWithKey("k", "other body", "bob");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(other->existed);
}

TEST_P(JobStoreTest, MakesOneJobOfOneKeyThatManySubmitAtOnce) {
  constexpr int kThreads = 8;
  std::vector<std::string> ids(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { ids[i] = SubmitWithKey("k", "body")->job.id; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(std::set<std::string>(ids.begin(), ids.end()), SizeIs(1));
  EXPECT_EQ(Count(TaskState::kQueued), 1);
}

TEST_P(JobStoreTest, KeepsItsWordToManyThreadsAtOnce) {
  constexpr int kThreads = 4;
  std::mutex mutex;
  JobOracle oracle;
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      JobWorkload workload(*store_, static_cast<uint64_t>(i), [&](const Ack& ack) {
        const std::lock_guard lock(mutex);
        oracle.Hear(ack);
      });
      for (int step = 0; step < 100; ++step) failures += workload.Step() ? 0 : 1;
      failures += workload.Drain() ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  const OracleTally tally = oracle.Judge(*store_);
  EXPECT_TRUE(tally.clean()) << tally.Line();
  EXPECT_EQ(tally.done, Count(TaskState::kDone));
  EXPECT_EQ(tally.cancelled, Count(TaskState::kCancelled));
}

TEST_P(JobStoreTest, QueuesAgainWhatRanWhenTheProcessEnded) {
  const JobRecord job = Submit(2);
  const TaskAttempt old = Claim(job.tasks[0].id);
  const Recovery recovery = Reopen();
  EXPECT_EQ(recovery.given_back, 1);
  EXPECT_EQ(recovery.queued, 2);
  EXPECT_THAT(queue_, ElementsAre(job.tasks[0].id, job.tasks[1].id));
  EXPECT_EQ(Finish(old).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(TaskOf(job).blame, Blame());
}

TEST_P(JobStoreTest, HidesJobsAndImagesOfOtherTenants) {
  const JobRecord job = Submit();
  ASSERT_TRUE(Finish(Claim(job.tasks[0].id)).ok());
  const std::string image = TaskOf(job).image->id;
  EXPECT_EQ(store_->Get("bob", job.id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->Cancel("bob", job.id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadBytes(store_->OpenImage("bob", image)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(store_->List("bob", 10, "")->jobs, IsEmpty());
}

TEST_P(JobStoreTest, KnowsNoIdWithAnotherToken) {
  std::string id = Submit().id;
  id.back() = id.back() == '0' ? '1' : '0';
  EXPECT_EQ(store_->Get(kTenant, id).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(JobStoreTest, CancelsAQueuedAndARunningTask) {
  const JobRecord job = Submit(3);
  const TaskAttempt done = Claim(job.tasks[0].id), running = Claim(job.tasks[1].id);
  ASSERT_TRUE(Finish(done).ok());
  const absl::StatusOr<JobRecord> cancelled = store_->Cancel(kTenant, job.id);
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  EXPECT_EQ(StateOf(*cancelled), JobState::kCancelled);
  EXPECT_EQ(cancelled->tasks[0].state, TaskState::kDone);
  EXPECT_EQ(cancelled->tasks[1].state, TaskState::kCancelled);
  EXPECT_EQ(cancelled->tasks[2].state, TaskState::kCancelled);
  EXPECT_EQ(Finish(running).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(JobStoreTest, LeavesACancelledEndedJobAsItWas) {
  const JobRecord job = Submit();
  ASSERT_TRUE(Finish(Claim(job.tasks[0].id)).ok());
  EXPECT_EQ(StateOf(*store_->Cancel(kTenant, job.id)), JobState::kDone);
}

TEST_P(JobStoreTest, QuarantinesATaskWhoseWorkerDiesThreeTimesAroundItAlone) {
  const JobRecord job = Submit();
  for (int32_t death = 1; death <= 2; ++death) {
    const std::vector<Verdict> verdicts = *store_->GroupDied({Claim(job.tasks[0].id)}, "signal 11");
    EXPECT_EQ(verdicts[0].state, TaskState::kQueued);
    EXPECT_EQ(verdicts[0].blame, (Blame{.deaths = death, .isolated = true}));
    Reopen();  // the deaths counted before still count
  }
  const std::vector<Verdict> verdicts = *store_->GroupDied({Claim(job.tasks[0].id)}, "signal 11");
  EXPECT_EQ(verdicts[0].state, TaskState::kQuarantined);
  const TaskRecord task = TaskOf(job);
  EXPECT_EQ(task.state, TaskState::kQuarantined);
  EXPECT_THAT(std::string(task.error.message()), HasSubstr("signal 11"));
  EXPECT_EQ(store_->Claim(job.tasks[0].id).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(JobStoreTest, BlamesNoTaskThatSharedItsWorkerButRunsItAlone) {
  const JobRecord job = Submit(2);
  for (int death = 0; death < 5; ++death) {
    const std::vector<Verdict> verdicts =
        *store_->GroupDied({Claim(job.tasks[0].id), Claim(job.tasks[1].id)}, "signal 9");
    for (const Verdict& verdict : verdicts) {
      EXPECT_EQ(verdict.state, TaskState::kQueued);
      EXPECT_EQ(verdict.blame, (Blame{.deaths = 0, .isolated = true}));
    }
  }
}

TEST_P(JobStoreTest, CountsNoDeathOfAGivenBackTask) {
  const JobRecord job = Submit();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(store_->GiveBack({Claim(job.tasks[0].id)}).ok());
  EXPECT_EQ(TaskOf(job).blame, Blame());
}

TEST_P(JobStoreTest, ForgetsNothingWhenTheCalendarJumps) {
  const JobRecord done = Submit();
  ASSERT_TRUE(Finish(Claim(done.tasks[0].id)).ok());
  const absl::Time now = store_->Now();
  clock_.Jump(absl::Hours(24 * 365));
  EXPECT_EQ(store_->Sweep(100)->jobs, 0);
  clock_.Jump(-absl::Hours(24 * 3650));
  EXPECT_EQ(store_->Sweep(100)->jobs, 0);
  EXPECT_EQ(store_->Now(), now) << "waits and deadlines are on a time that never jumps";
  if (GetParam() == Kept::kInPostgres) return;  // it uses the database's clock
  EXPECT_EQ(Submit().created, clock_.Now()) << "and records have the time that the clock says";
}

TEST_P(JobStoreTest, ForgetsNothingEarlyAfterAStartWithAWrongClock) {
  for (const absl::Duration wrong : {absl::Hours(72), -absl::Hours(72), absl::Hours(24 * 4400)}) {
    const std::string key = absl::StrCat("before ", absl::FormatDuration(wrong));
    const JobRecord before = SubmitWithKey(key, "body")->job;
    ASSERT_TRUE(Finish(Claim(before.tasks[0].id)).ok());
    SetCalendar(wrong);
    Reopen();
    EXPECT_EQ(store_->Sweep(100)->jobs, 0) << wrong;
    const JobRecord meanwhile = Submit();
    ASSERT_TRUE(Finish(Claim(meanwhile.tasks[0].id)).ok());
    SetCalendar(absl::ZeroDuration());
    Reopen();
    EXPECT_EQ(store_->Sweep(100)->jobs, 0) << wrong;
    EXPECT_TRUE(SubmitWithKey(key, "body")->existed);
    clock_.Advance(kRetention - absl::Seconds(1));
    EXPECT_EQ(store_->Sweep(100)->jobs, 0) << wrong;
    clock_.Advance(absl::Seconds(1));
    EXPECT_EQ(store_->Sweep(100)->jobs, 2) << wrong << ": nothing is kept for longer";
  }
}

TEST_P(JobStoreTest, MeasuresRetentionByTheTimeInWhichAServerWorked) {
  const JobRecord job = Submit();
  ASSERT_TRUE(Finish(Claim(job.tasks[0].id)).ok());
  for (int start = 0; start < 4; ++start) {
    EXPECT_EQ(store_->Sweep(100)->jobs, 0) << start;
    clock_.Advance(kRetention / 4);
    store_.reset();
    clock_.Advance(absl::Hours(24 * 7));  // no server works meanwhile
    Reopen();
  }
  EXPECT_EQ(store_->Sweep(100)->jobs, 1);
}

TEST_P(JobStoreTest, GivesNewJobsTheTimeOfTheClockOnceItIsRight) {
  SetCalendar(absl::Hours(24 * 4400));
  Reopen();
  const JobRecord wrong = Submit();
  SetCalendar(absl::ZeroDuration());
  Reopen();
  const JobRecord right = Submit();
  EXPECT_GT(wrong.created - right.created, absl::Hours(24 * 4399));
  const absl::StatusOr<JobRecordPage> page = store_->List(kTenant, 10, "");
  ASSERT_THAT(page->jobs, SizeIs(2));
  EXPECT_EQ(page->jobs[0].id, right.id) << "the newest is the first, whatever the clock said";
}

TEST_P(JobStoreTest, ReportsANewestTimeInTheFuture) {
  SetCalendar(absl::Hours(24 * 4400));
  Reopen();
  const JobRecord wrong = Submit();
  const Recovery then = Reopen();
  EXPECT_EQ(FutureText(then.newest, then.opened), "");
  SetCalendar(absl::ZeroDuration());
  Reopen();
  Submit();
  const Recovery recovery = Reopen();
  EXPECT_LT(wrong.created - recovery.newest, absl::Microseconds(1)) << "a later job of the right time hides nothing";
  EXPECT_THAT(FutureText(recovery.newest, recovery.opened),
              HasSubstr(absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", wrong.created, absl::UTCTimeZone())));
}

TEST_P(JobStoreTest, ForeseesTheEndOfARetention) {
  const JobRecord job = Submit();
  ASSERT_TRUE(Finish(Claim(job.tasks[0].id)).ok());
  const std::optional<absl::Time> expiry = store_->ExpiryOf(*store_->Get(kTenant, job.id));
  ASSERT_TRUE(expiry.has_value());
  EXPECT_LT(absl::AbsDuration(*expiry - store_->Now() - kRetention), absl::Seconds(1));
  EXPECT_EQ(store_->ExpiryOf(*store_->Get(kTenant, Submit().id)), std::nullopt);
}

TEST_P(JobStoreTest, HandsOutItsQueueInItsOrderWhateverTheClockSaid) {
  std::vector<uint64_t> submitted;
  for (const int64_t wrong : {0, 4400, 0, -3650, 0}) {
    SetCalendar(absl::Hours(24 * wrong));
    Reopen();
    submitted.push_back(Submit().tasks[0].id);
  }
  OpenAgain();
  absl::Time last = absl::InfinitePast();
  const absl::StatusOr<Recovery> recovery = store_->Recover([&](const QueuedTask& task) {
    queue_.push_back(task.id);
    EXPECT_GE(task.created, last) << "the scheduler goes by it";
    EXPECT_LE(task.created, store_->Now());
    last = task.created;
  });
  ASSERT_TRUE(recovery.ok()) << recovery.status();
  EXPECT_EQ(queue_, submitted);
}

TEST_P(JobStoreTest, ForgetsAJobItsFilesAndItsKeyAtTheEndOfItsRetention) {
  const JobRecord job = SubmitWithKey("k", "body")->job;
  ASSERT_TRUE(Finish(Claim(job.tasks[0].id)).ok());
  const JobRecord queued = Submit();
  clock_.Advance(kRetention - absl::Seconds(1));
  EXPECT_EQ(store_->Sweep(100)->jobs, 0);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(store_->Sweep(100)->jobs, 1);
  EXPECT_EQ(store_->Get(kTenant, job.id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(*disk_.files().List(), IsEmpty());
  EXPECT_FALSE(SubmitWithKey("k", "other body")->existed);
  EXPECT_TRUE(store_->Get(kTenant, queued.id).ok());
  EXPECT_EQ(Count(TaskState::kDone), 0);
}

TEST_P(JobStoreTest, SweepsFilesThatNoTaskOwns) {
  const JobRecord job = Submit(2);
  ASSERT_TRUE(Finish(Claim(job.tasks[0].id)).ok());
  const TaskAttempt running = Claim(job.tasks[1].id);
  ASSERT_TRUE(disk_.files().Write("00/512-1", "of a task that is gone").ok());
  ASSERT_TRUE(disk_.files().Write("stranger", "of nobody").ok());
  const std::string being_finished = absl::StrCat("0", running.task, "/", running.task, "-", running.attempt);
  ASSERT_TRUE(disk_.files().Write(being_finished, "of a call under way").ok());
  ASSERT_TRUE(store_->SettleImages(1).ok());
  EXPECT_EQ(store_->Sweep(100)->orphans, 2);
  EXPECT_THAT(*disk_.files().List(), ElementsAre(TaskOf(job).image->file, being_finished));
}

TEST_P(JobStoreTest, NeverUsesANumberAgain) {
  const JobRecord job = Submit();
  ASSERT_TRUE(Finish(Claim(job.tasks[0].id)).ok());
  clock_.Advance(kRetention);
  ASSERT_EQ(store_->Sweep(100)->jobs, 1);
  Reopen();
  EXPECT_GT(Submit().tasks[0].id, job.tasks[0].id);
}

TEST_P(JobStoreTest, ListsTheNewestFirstPageByPage) {
  std::vector<std::string> expected;
  for (int i = 0; i < 5; ++i) {
    expected.insert(expected.begin(), Submit().id);
    Submit(1, "bob");
  }
  std::vector<std::string> listed;
  std::string after;
  int pages = 0;
  do {
    const absl::StatusOr<JobRecordPage> page = store_->List(kTenant, 2, after);
    ASSERT_TRUE(page.ok()) << page.status();
    for (const JobRecord& job : page->jobs) listed.push_back(job.id);
    after = page->next;
    ++pages;
  } while (!after.empty());
  EXPECT_EQ(listed, expected);
  EXPECT_EQ(pages, 3);
}

TEST_P(JobStoreTest, RefusesAPageThatNoneGave) {
  for (const char* after : {"x", "-1", "0", "1", "99999999999999999999", "1; DROP TABLE jobs"}) {
    EXPECT_EQ(store_->List(kTenant, 2, after).status().code(), absl::StatusCode::kNotFound) << after;
  }
}

TEST_P(JobStoreTest, FailsADamagedRowAndKeepsTheOthers) {
  const JobRecord damaged = Submit(), sound = Submit();
  Tamper(absl::StrCat("UPDATE jobs SET request = ", ZeroByte(), " WHERE number = 1"));
  const Recovery recovery = Reopen();
  EXPECT_EQ(recovery.damaged, 1);
  EXPECT_THAT(queue_, ElementsAre(sound.tasks[0].id));
  const TaskRecord task = TaskOf(damaged);
  EXPECT_EQ(task.state, TaskState::kFailed);
  EXPECT_EQ(task.error.code(), absl::StatusCode::kDataLoss);
}

TEST_P(JobStoreTest, FailsATaskThatWasDamagedWhileItWaited) {
  const JobRecord job = Submit();
  Tamper(absl::StrCat("UPDATE jobs SET checksum = ", ZeroByte()));
  OpenAgain();
  EXPECT_EQ(store_->Claim(job.tasks[0].id).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(TaskOf(job).state, TaskState::kFailed);
}

TEST_P(JobStoreTest, FailsARowOfAnUnknownState) {
  if (GetParam() == Kept::kInPostgres) return;  // it accepts no such row
  const JobRecord damaged = Submit(), sound = Submit();
  Tamper("UPDATE tasks SET state = 77 WHERE number = 1");
  Reopen();
  EXPECT_EQ(TaskOf(damaged).state, TaskState::kFailed);
  EXPECT_THAT(queue_, ElementsAre(sound.tasks[0].id));
  EXPECT_EQ(Count(TaskState::kFailed), 1);
}

TEST_P(JobStoreTest, ShowsNoTaskOfAnotherJobUnderADamagedCount) {
  const JobRecord job = Submit();
  Submit(1, "bob");
  Tamper("UPDATE jobs SET tasks = 1000 WHERE number = 1");
  Reopen();
  EXPECT_THAT(store_->Get(kTenant, job.id)->tasks, SizeIs(1));
}

TEST_P(JobStoreTest, KeepsWhatAnErrorIsAbout) {
  const JobRecord job = Submit(2);
  const absl::Status of_field = base::ErrorOfField("steps", " is 9; take fewer steps"),
                     of_none = absl::InternalError("x");
  ASSERT_TRUE(store_->Fail(Claim(job.tasks[0].id), of_field, {}).ok());
  ASSERT_TRUE(store_->Fail(Claim(job.tasks[1].id), of_none, {}).ok());
  Reopen();
  const absl::StatusOr<JobRecord> failed = store_->Get(kTenant, job.id);
  ASSERT_TRUE(failed.ok()) << failed.status();
  EXPECT_EQ(failed->tasks[0].error, of_field);
  EXPECT_EQ(failed->tasks[1].error, of_none);
}

TEST_P(JobStoreTest, CountsItsTasksByState) {
  const JobRecord job = Submit(4);
  ASSERT_TRUE(Finish(Claim(job.tasks[0].id)).ok());
  ASSERT_TRUE(store_->Fail(Claim(job.tasks[1].id), absl::InternalError("x"), {}).ok());
  Claim(job.tasks[2].id);
  EXPECT_THAT(store_->Counts(), ElementsAre(1, 1, 1, 1, 0, 0));
  Reopen();
  EXPECT_THAT(store_->Counts(), ElementsAre(2, 0, 1, 1, 0, 0));
}

TEST_P(JobStoreTest, RefusesWhatIsOutOfRangeAtTheDoor) {
  EXPECT_EQ(store_->Submit({.tenant = "", .request = SmallRequest(1)}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->Submit({.tenant = kTenant, .request = SmallRequest(0)}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->Submit({.tenant = kTenant, .request = SmallRequest(1001)}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SubmitWithKey("", "body").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SubmitWithKey(std::string(256, 'k'), "body").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(JobStoreTest, ALongQueueIsRecoveredInItsOrderWhateverIsDamagedInIt) {
  const auto same = [](const QueuedTask& task, const JobRecord& job) {
    return task.job == job.id && task.tenant == job.tenant &&
           task.index == static_cast<int32_t>(task.id - job.tasks[0].id) && task.request->count == job.request->count &&
           task.created == job.created;
  };
  // Rows are read in batches of 512: test the edges of one batch, then several.
  for (const size_t length : {size_t{511}, size_t{512}, size_t{513}, size_t{1600}}) {
    std::vector<std::pair<uint64_t, JobRecord>> wanted;
    for (const uint64_t task : queue_) ASSERT_TRUE(store_->FailQueued(task, absl::InternalError("another round")).ok());
    while (wanted.size() < length) {
      const JobRecord job = Submit(std::min<int32_t>(1 + wanted.size() % 3, length - wanted.size()));
      for (const TaskRecord& task : job.tasks) wanted.emplace_back(task.id, job);
    }
    const uint64_t damaged = wanted[length / 2].second.tasks[0].id;
    Tamper(absl::StrCat("UPDATE jobs SET request = ", ZeroByte(), " WHERE number = ", damaged));
    std::erase_if(wanted, [&](const auto& task) { return task.second.tasks[0].id == damaged; });
    OpenAgain();
    const absl::StatusOr<Recovery> recovery = store_->Recover([&](const QueuedTask& task) {
      const size_t at = queue_.size();
      EXPECT_TRUE(at < wanted.size() && wanted[at].first == task.id && same(task, wanted[at].second)) << at;
      queue_.push_back(task.id);
    });
    ASSERT_TRUE(recovery.ok()) << recovery.status();
    EXPECT_EQ(queue_.size(), wanted.size());
    EXPECT_EQ(recovery->damaged, static_cast<int64_t>(length - wanted.size()));
  }
}

}  // namespace
}  // namespace tessera::server
