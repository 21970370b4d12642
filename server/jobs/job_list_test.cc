// Tests of job lists over states and pages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "server/api/job.h"
#include "server/jobs/new_job.h"
#include "server/jobs/sqlite.h"
#include "server/jobs/sqlite_job_store.h"
#include "tests/jobs/fake_clock.h"
#include "tests/jobs/faulty_disk.h"
#include "tests/jobs/job_oracle.h"
#include "tests/jobs/job_workload.h"

namespace tessera::server {
namespace {

using ::testing::SizeIs;

class JobListTest : public testing::Test {
 protected:
  JobListTest() { Reopen(); }

  // Opens a store that has not read the jobs yet.
  void Reopen() {
    store_.reset();
    absl::StatusOr<std::unique_ptr<JobStore>> store =
        SqliteJobStore::Open({.path = "jobs", .files = &disk_.files(), .clock = &clock_, .vfs = disk_.vfs()});
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  JobRecord Submit() {
    const absl::StatusOr<SubmittedJob> job = store_->Submit({.tenant = kOracleTenant, .request = SmallRequest(1)});
    EXPECT_TRUE(job.ok()) << job.status();
    return job->job;
  }

  // Returns all jobs, read in pages of `limit`.
  std::vector<JobRecord> ListAll(int32_t limit, std::optional<JobState> state) {
    std::vector<JobRecord> jobs;
    std::string after;
    do {
      const absl::StatusOr<JobRecordPage> page = store_->List(kOracleTenant, limit, after, state);
      EXPECT_TRUE(page.ok()) << page.status();
      if (!page.ok()) return jobs;
      jobs.insert(jobs.end(), page->jobs.begin(), page->jobs.end());
      after = page->next;
    } while (!after.empty());
    return jobs;
  }

  FaultyDisk disk_;
  FakeClock clock_;
  std::unique_ptr<JobStore> store_;
};

TEST_F(JobListTest, HasOfAStateWhatAListOfAllShowsInIt) {
  std::map<JobState, size_t> met;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    JobWorkload workload(*store_, seed, [](const Ack&) {});
    for (int round = 0; round < 20; ++round) {
      for (int step = 0; step < 10; ++step) ASSERT_TRUE(workload.Step());
      const std::vector<JobRecord> all = ListAll(1000, std::nullopt);
      for (size_t i = 1; i < all.size(); ++i) {
        ASSERT_LT(all[i].tasks[0].id, all[i - 1].tasks[0].id);
      }
      ASSERT_EQ(ListAll(3, std::nullopt).size(), all.size());
      for (const JobState state :
           {JobState::kQueued, JobState::kRunning, JobState::kDone, JobState::kFailed, JobState::kCancelled}) {
        std::vector<std::string> expected, listed;
        for (const JobRecord& job : all) {
          if (StateOf(job) == state) expected.push_back(job.id);
        }
        for (const JobRecord& job : ListAll(1 + round, state)) listed.push_back(job.id);
        ASSERT_EQ(listed, expected) << "state " << static_cast<int>(state) << ", seed " << seed;
        met[state] += listed.size();
      }
    }
    Reopen();  // running tasks are queued again
  }
  EXPECT_THAT(met, SizeIs(5));
  for (const auto& [state, jobs] : met) EXPECT_GT(jobs, 0u) << static_cast<int>(state);
}

TEST_F(JobListTest, ShowsAFinishedJobWhoseImageRowIsDamagedAsFailedInEveryList) {
  const auto finish = [&] {
    JobRecord job = Submit();
    const absl::StatusOr<ClaimedTask> claimed = store_->Claim(job.tasks[0].id);
    EXPECT_TRUE(claimed.ok()) << claimed.status();
    EXPECT_TRUE(store_->Finish(claimed->claim, "bytes", {.width = 8, .height = 8, .layout = "serial"}).ok());
    return job;
  };
  const JobRecord damaged = finish(), sound = finish();
  store_.reset();
  {
    const absl::StatusOr<std::unique_ptr<SqliteDatabase>> database =
        SqliteDatabase::Open({.path = "jobs", .vfs = disk_.vfs()});
    ASSERT_TRUE(database.ok()) << database.status();
    ASSERT_TRUE((*database)->Execute("UPDATE tasks SET image = zeroblob(40) WHERE number = 1").ok());
  }
  Reopen();
  const absl::StatusOr<Recovery> recovery = store_->Recover([](const QueuedTask&) {});
  ASSERT_TRUE(recovery.ok()) << recovery.status();
  EXPECT_EQ(recovery->damaged, 1);
  for (int opened = 0; opened < 2; ++opened) {
    const std::vector<JobRecord> all = ListAll(10, std::nullopt), failed = ListAll(10, JobState::kFailed),
                                 done = ListAll(10, JobState::kDone);
    ASSERT_THAT(all, SizeIs(2));
    ASSERT_THAT(failed, SizeIs(1));
    ASSERT_THAT(done, SizeIs(1));
    EXPECT_EQ(StateOf(all[1]), JobState::kFailed);
    EXPECT_EQ(failed[0].id, damaged.id);
    EXPECT_EQ(failed[0].tasks[0].error.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(done[0].id, sound.id);
    EXPECT_EQ(store_->Counts()[static_cast<size_t>(TaskState::kFailed)], 1);
    EXPECT_EQ(store_->Counts()[static_cast<size_t>(TaskState::kDone)], 1);
    Reopen();
  }
}

TEST_F(JobListTest, ReadsAFewPagesForAPage) {
  const JobRecord failed = Submit();
  const absl::StatusOr<ClaimedTask> claimed = store_->Claim(failed.tasks[0].id);
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  ASSERT_TRUE(store_->Fail(claimed->claim, absl::InternalError("x"), {}).ok());
  constexpr int kJobs = 3000;
  absl::BlockingCounter submitted(kJobs);
  for (int i = 0; i < kJobs; ++i) {
    store_->SubmitAsync({.tenant = kOracleTenant, .request = SmallRequest(1)},
                        [&](const absl::StatusOr<SubmittedJob>& job) {
                          EXPECT_TRUE(job.ok()) << job.status();
                          submitted.DecrementCount();
                        });
  }
  submitted.Wait();
  for (const std::optional<JobState> state : {std::optional(JobState::kFailed), std::optional<JobState>()}) {
    Reopen();
    const int64_t before = disk_.reads();
    const absl::StatusOr<JobRecordPage> page = store_->List(kOracleTenant, 1, "", state);
    ASSERT_TRUE(page.ok()) << page.status();
    ASSERT_THAT(page->jobs, SizeIs(1));
    EXPECT_EQ(page->jobs[0].id == failed.id, state.has_value());
    EXPECT_EQ(page->next.empty(), state.has_value());
    EXPECT_LT(disk_.reads() - before, 40) << "3000 jobs are in some 300 pages";
  }
}

}  // namespace
}  // namespace tessera::server
