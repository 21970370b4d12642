// Tests the service when its disk rejects results, is missing, or holds a damaged database. Readiness, answers, counts,
// metrics and log must report the same state, and no caller may wait for an event that cannot come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/api/service_error.h"
#include "server/jobs/disk_result_store.h"
#include "server/jobs/sqlite.h"
#include "server/serving/durable_image_service.h"
#include "tests/jobs/faulty_disk.h"
#include "tests/jobs/small_files.h"
#include "tests/support/test_folder.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::Duration kSoon = absl::Seconds(60);

class StorageTroubleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("TESSERA_WORKER", FAKE_WORKER, 1);
    fs::create_directory(folder_ / "tiny");
    std::ofstream(folder_ / "tiny/model_index.json") << "{}";
  }
  void TearDown() override { service_.reset(); }

  void Start(server::DurableServiceOptions options = {}, const std::string& script = "") {
    setenv("TESSERA_FAKE_WORKER", script.c_str(), 1);
    options.data_folder = folder_ / "data";
    options.groups = {{.name = "tiny", .load = {.model = folder_ / "tiny"}}};
    options.first_back_off = absl::Milliseconds(1);
    options.log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      log_.push_back(line);
    };
    absl::StatusOr<std::unique_ptr<server::DurableImageService>> service = server::DurableImageService::Start(options);
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    WaitUntil("ready", [&] { return service_->Ready().ok(); });
  }

  absl::StatusOr<server::Submitted> Submit(const std::string& prompt = "x") {
    server::JobRequest request = {.model = "tiny", .count = 1};
    request.parameters = {.prompt = prompt, .height = 16, .width = 24, .steps = 2, .seed = 1, .sampler = "ddim"};
    return service_->Submit(caller_, request, std::nullopt);
  }

  std::string Accepted(const std::string& prompt = "x") {
    const absl::StatusOr<server::Submitted> submitted = Submit(prompt);
    EXPECT_TRUE(submitted.ok()) << submitted.status();
    return submitted.ok() ? submitted->job.id : "";
  }

  server::JobState StateOf(const std::string& job) {
    const absl::StatusOr<server::Job> found = service_->Get(caller_, job);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? found->state : server::JobState::kQueued;
  }

  // Returns the log lines about the disk.
  std::vector<std::string> StorageLog() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> lines;
    std::ranges::copy_if(log_, std::back_inserter(lines),
                         [](const std::string& line) { return line.starts_with("storage: "); });
    return lines;
  }

  // Watches the job and returns the reason with which the watch is released before the job's end.
  absl::Status WaitUntilReleased(const std::string& job) {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<absl::Status> reason;
    const auto watch = service_->Watch(caller_, job, server::WatchedEvents::kAll, [&](const server::JobEvent& event) {
      const auto* released = std::get_if<server::ReleasedEvent>(&event);
      if (released == nullptr) return;
      const std::lock_guard lock(mutex);
      reason = released->reason;
      changed.notify_all();
    });
    EXPECT_TRUE(watch.ok()) << watch.status();
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, absl::ToChronoSeconds(kSoon), [&] { return reason.has_value(); }));
    return reason.value_or(absl::OkStatus());
  }

  void ExpectOneTruth(const std::string& state, const std::string& code) {
    EXPECT_EQ(service_->Ready().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(server::ErrorCode(service_->Ready()), code);
    const absl::Status refused = Submit().status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
    EXPECT_EQ(server::ErrorCode(refused), code);
    EXPECT_TRUE(server::RetryAfter(refused).has_value());
    EXPECT_THAT(std::string(refused.message()), Not(HasSubstr(folder_.path()))) << "names are the operator's";
    EXPECT_EQ(server::StorageStateName(service_->Info().storage), state);
    EXPECT_THAT(service_->MetricsText(), HasSubstr(absl::StrCat("tessera_storage_state{state=\"", state, "\"} 1")));
    EXPECT_THAT(service_->MetricsText(), HasSubstr("tessera_storage_state{state=\"ok\"} 0"));
    ASSERT_EQ(StorageLog().size(), 1u);
    EXPECT_THAT(StorageLog()[0], HasSubstr(absl::StrCat("storage: ", state, ": ")));
  }

  void ExpectRecovery() {
    WaitUntil("the end of the trouble", [&] { return service_->Ready().ok(); });
    ASSERT_EQ(StorageLog().size(), 2u);
    EXPECT_THAT(StorageLog()[1], HasSubstr("storage: ok again after "));
    EXPECT_THAT(service_->MetricsText(), HasSubstr("tessera_storage_state{state=\"ok\"} 1"));
  }

  TestFolder folder_;
  FaultyDisk disk_;
  server::DiskResultStore files_{folder_ / "images"};
  SmallFiles small_{files_};
  server::Caller caller_ = {.tenant = "me"};
  std::mutex mutex_;
  std::vector<std::string> log_;  // guarded by mutex_
  std::unique_ptr<server::DurableImageService> service_;
};

TEST_F(StorageTroubleTest, AResultWithoutRoomIsAFullDiskAlthoughTheDatabaseHasSome) {
  Start({.results = &small_});
  small_.SetRoom(0);
  const std::string first = Accepted();
  WaitUntil("the first result", [&] { return !service_->Ready().ok(); });
  ExpectOneTruth("full", "storage_full");
  WaitUntil("its worker is free", [&] { return service_->Info().running_jobs == 1; });
  EXPECT_EQ(service_->Info().unstored_images, 1);
  EXPECT_EQ(service_->Info().queued_jobs, 0);
  EXPECT_EQ(StateOf(first), server::JobState::kRunning);
  EXPECT_THAT(service_->MetricsText(), HasSubstr("tessera_rejected_jobs_total{reason=\"storage_full\"} 1"));

  small_.SetRoom(UINT64_MAX);
  ExpectRecovery();
  WaitUntil("the image", [&] { return StateOf(first) == server::JobState::kDone; });
  WaitUntil("all is told", [&] { return service_->Info().running_jobs == 0; });
  EXPECT_EQ(service_->Info().unstored_images, 0);
  EXPECT_GT(service_->Info().result_bytes, 0);
  EXPECT_THAT(service_->MetricsText(),
              HasSubstr(absl::StrCat("tessera_result_bytes ", service_->Info().result_bytes, "\n")));
  Accepted();
}

TEST_F(StorageTroubleTest, WhatWasAcceptedUnderAKeyIsReportedWhileNothingNewIs) {
  Start({.results = &small_});
  server::JobRequest request = {.model = "tiny", .count = 1};
  request.parameters = {.prompt = "x", .height = 16, .width = 24, .steps = 2, .seed = 1, .sampler = "ddim"};
  const server::IdempotencyKey key = {.key = "k", .digest = "d"};
  small_.SetRoom(0);
  const absl::StatusOr<server::Submitted> first = service_->Submit(caller_, request, key);
  ASSERT_TRUE(first.ok()) << first.status();
  WaitUntil("the result", [&] { return !service_->Ready().ok(); });
  const absl::StatusOr<server::Submitted> again = service_->Submit(caller_, request, key);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->job.id, first->job.id);
  EXPECT_FALSE(Submit().ok());
}

TEST_F(StorageTroubleTest, CallersOfAnImageThatHasNoRoomGetTheErrorAfterAWhile) {
  Start({.results = &small_, .disk_timeout = absl::Milliseconds(1)});
  small_.SetRoom(0);
  const std::string job = Accepted();
  EXPECT_EQ(server::ErrorCode(WaitUntilReleased(job)), "storage_full");
  // No client waits for the cancelled job, so its place is free at once, before the disk recovers.
  ASSERT_TRUE(service_->Cancel(caller_, job).ok());
  WaitUntil("it is released", [&] { return service_->Info().running_jobs == 0; });
  EXPECT_EQ(StateOf(job), server::JobState::kCancelled);
}

TEST_F(StorageTroubleTest, CallersOfAJobWhoseStartHasNoRoomGetTheErrorToo) {
  std::atomic<bool> fills = true;
  const auto at_point = [&](absl::string_view point) {
    if (point == "claim.begin" && fills.exchange(false)) disk_.Plan(DiskFault::kFull, 0);
  };
  Start({.vfs = disk_.vfs(), .disk_timeout = absl::Milliseconds(1), .at_point = at_point});
  const std::string job = Accepted();
  EXPECT_EQ(server::ErrorCode(WaitUntilReleased(job)), "storage_full");
  EXPECT_EQ(StateOf(job), server::JobState::kQueued);
  ExpectOneTruth("full", "storage_full");
  disk_.Plan(DiskFault::kNone, 0);
  ExpectRecovery();
  WaitUntil("the image", [&] { return StateOf(job) == server::JobState::kDone; });
  service_.reset();  // before the disk is destroyed
}

TEST_F(StorageTroubleTest, TheEndDoesNotWaitForImagesThatCannotBeStored) {
  Start({.results = &small_, .disk_timeout = absl::Milliseconds(1)});
  small_.SetRoom(0);
  const std::string job = Accepted();
  WaitUntil("the result", [&] { return service_->Info().unstored_images == 1; });
  service_->Drain(absl::Hours(1));
  service_.reset();
  small_.SetRoom(UINT64_MAX);
  Start({.results = &small_});
  WaitUntil("it is made again", [&] { return StateOf(job) == server::JobState::kDone; });
}

TEST_F(StorageTroubleTest, ATroubleThatATrialDoesNotMeetLastsAsLongAsAResultMeetsIt) {
  std::atomic<int> tries = 0;
  Start({.at_point = [&](absl::string_view point) { tries += point == "finish.before_file" ? 1 : 0; }});
  fs::create_directories(folder_ / "data/images/01/1-1");  // the path of the first result's file
  const std::string job = Accepted();
  WaitUntil("it is tried again", [&] { return tries >= 3; });
  ExpectOneTruth("failing", "storage_unavailable");
  fs::remove(folder_ / "data/images/01/1-1");
  ExpectRecovery();
  WaitUntil("the image", [&] { return StateOf(job) == server::JobState::kDone; });
}

TEST_F(StorageTroubleTest, ADeadWorkersJobThatTheStoreCannotTakeBackRuns) {
  Start({.vfs = disk_.vfs()}, absl::StrCat("step2-of-gated=die gate=", folder_ / "gate"));
  const std::string job = Accepted("gated");
  WaitUntil("it runs", [&] { return StateOf(job) == server::JobState::kRunning; });
  disk_.Plan(DiskFault::kFull, 0);
  std::ofstream(folder_ / "gate") << "";
  WaitUntil("its death",
            [&] { return !service_->Ready().ok() && service_->Info().storage == server::StorageState::kFull; });
  EXPECT_EQ(service_->Info().running_jobs, 1);
  disk_.Plan(DiskFault::kNone, 0);
  WaitUntil("its end", [&] { return StateOf(job) == server::JobState::kFailed; });
  service_.reset();  // before the disk is destroyed
}

TEST_F(StorageTroubleTest, ADataFolderThatIsGoneTakesNoJobsUntilItIsBack) {
  Start();
  fs::rename(folder_ / "data", folder_ / "elsewhere");
  WaitUntil("it is noticed without a job", [&] { return !service_->Ready().ok(); });
  ExpectOneTruth("moved", "storage_unavailable");
  fs::rename(folder_ / "elsewhere", folder_ / "data");
  ExpectRecovery();
  const std::string job = Accepted();
  WaitUntil("an image", [&] { return StateOf(job) == server::JobState::kDone; });
}

TEST_F(StorageTroubleTest, AFolderThatCoversTheDataFolderTakesNoJobs) {
  Start();
  fs::rename(folder_ / "data", folder_ / "elsewhere");
  fs::create_directories(folder_ / "data/images");
  EXPECT_EQ(server::ErrorCode(Submit().status()), "storage_unavailable") << "at once";
  ExpectOneTruth("moved", "storage_unavailable");
}

TEST_F(StorageTroubleTest, AJobThatADamagedDatabaseCannotEndFailsWithTheReason) {
  Start({.vfs = disk_.vfs()});
  const std::string before = Accepted();
  WaitUntil("an image", [&] { return StateOf(before) == server::JobState::kDone; });
  service_.reset();
  Start({.vfs = disk_.vfs()}, absl::StrCat("gate=", folder_ / "gate"));
  const std::string job = Accepted("gated");
  WaitUntil("it runs", [&] { return StateOf(job) == server::JobState::kRunning; });
  {
    // Overwrites an index page that has not been read since the store was opened.
    const std::string path = folder_ / "data/jobs.sqlite";
    absl::StatusOr<std::unique_ptr<server::SqliteDatabase>> database =
        server::SqliteDatabase::Open({.path = path, .vfs = disk_.vfs()});
    ASSERT_TRUE(database.ok()) << database.status();
    ASSERT_TRUE((*database)->Execute("PRAGMA wal_checkpoint(TRUNCATE)").ok());
    absl::StatusOr<server::SqliteStatement> root =
        (*database)->Prepare("SELECT rootpage FROM sqlite_schema WHERE name = 'jobs_by_expiry'");
    ASSERT_TRUE(root.ok() && *root->Step());
    std::string& bytes = *disk_.BytesOf(path);
    std::fill_n(bytes.begin() + (root->Int(0) - 1) * 4096, 4096, '\xA5');
  }
  std::ofstream(folder_ / "gate") << "";
  WaitUntil("its end", [&] { return StateOf(job) == server::JobState::kFailed; });
  EXPECT_THAT(std::string(service_->Get(caller_, job)->error.message()), HasSubstr("database is damaged"));
  const server::ListOptions running = {.state = server::JobState::kRunning};
  EXPECT_THAT(service_->List(caller_, running)->jobs, IsEmpty());
  WaitUntil("nothing runs", [&] { return service_->Info().running_jobs == 0; });
  ExpectOneTruth("damaged", "storage_unavailable");
  disk_.Plan(DiskFault::kNone, 0);
  service_.reset();  // before the disk is destroyed
}

}  // namespace
}  // namespace tessera
