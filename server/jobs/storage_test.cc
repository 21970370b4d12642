// Tests of the job store on a disk that is full, damaged, missing or read by others.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "server/jobs/disk_result_store.h"
#include "server/jobs/new_job.h"
#include "server/jobs/sqlite.h"
#include "server/jobs/sqlite_job_store.h"
#include "server/jobs/store_report.h"
#include "tests/jobs/fake_clock.h"
#include "tests/jobs/faulty_disk.h"
#include "tests/jobs/job_workload.h"
#include "tests/jobs/small_files.h"
#include "tests/support/read_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kTenant[] = "alice";
constexpr uint64_t kPage = 4096;

class StorageTest : public testing::Test {
 protected:
  // Options of a store on the machine's disk.
  SqliteJobStoreOptions OnDisk() {
    return {.path = folder_ / "data/jobs.sqlite", .files = &disk_files_, .clock = &clock_, .on_storage = Hear()};
  }
  // Options of a store in memory, with files whose space the test limits.
  SqliteJobStoreOptions InMemory() {
    return {.path = "jobs", .files = &small_files_, .clock = &clock_, .vfs = disk_.vfs(), .on_storage = Hear()};
  }

  StorageHealth::OnChange Hear() {
    return [this](const StorageTrouble& trouble) {
      heard_.push_back(std::string(kStorageStates.at(static_cast<size_t>(trouble.state))));
    };
  }

  absl::Status Open(const SqliteJobStoreOptions& options) {
    store_.reset();
    fs::create_directories(folder_ / "data");
    absl::StatusOr<std::unique_ptr<JobStore>> store = SqliteJobStore::Open(options);
    if (!store.ok()) return store.status();
    store_ = *std::move(store);
    return store_->Recover([](const QueuedTask&) {}).status();
  }

  absl::StatusOr<SubmittedJob> Submit() { return store_->Submit({.tenant = kTenant, .request = SmallRequest(1)}); }

  // Returns a running task.
  TaskAttempt Run() {
    const absl::StatusOr<SubmittedJob> job = Submit();
    EXPECT_TRUE(job.ok()) << job.status();
    const absl::StatusOr<ClaimedTask> claimed = store_->Claim(job->job.tasks[0].id);
    EXPECT_TRUE(claimed.ok()) << claimed.status();
    return claimed->claim;
  }

  absl::Status Finish(const TaskAttempt& attempt, size_t bytes = 1000) {
    return store_->Finish(attempt, std::string(bytes, 'x'), {.width = 64, .height = 64, .layout = "serial"});
  }

  void ExpectDone(const TaskAttempt& attempt) {
    EXPECT_EQ(store_->Counts()[static_cast<size_t>(TaskState::kDone)], 1) << attempt.task;
  }

  // Returns the existing jobs, oldest first.
  std::vector<uint64_t> Jobs() {
    std::vector<uint64_t> jobs;
    const absl::StatusOr<JobRecordPage> page = store_->List(kTenant, 1000, "");
    EXPECT_TRUE(page.ok()) << page.status();
    if (!page.ok()) return jobs;
    for (const JobRecord& job : page->jobs) jobs.push_back(job.tasks[0].id);
    std::ranges::reverse(jobs);
    return jobs;
  }

  // Overwrites the first page of a table or an index without the store's knowledge, or before it has read the page.
  void DamageRootOf(const std::string& name, std::string& bytes, const std::string& vfs, const std::string& path) {
    absl::StatusOr<std::unique_ptr<SqliteDatabase>> database = SqliteDatabase::Open({.path = path, .vfs = vfs});
    ASSERT_TRUE(database.ok()) << database.status();
    ASSERT_TRUE((*database)->Execute("PRAGMA wal_checkpoint(TRUNCATE)").ok());
    absl::StatusOr<SqliteStatement> root = (*database)->Prepare("SELECT rootpage FROM sqlite_schema WHERE name = ?");
    ASSERT_TRUE(root.ok()) << root.status();
    ASSERT_TRUE(*root->BindText(1, name).Step());
    const auto page = static_cast<size_t>(root->Int(0));
    ASSERT_GE(bytes.size(), page * kPage);
    std::fill_n(bytes.begin() + static_cast<ptrdiff_t>((page - 1) * kPage), kPage, '\xA5');
  }

  TestFolder folder_;
  FakeClock clock_;
  FaultyDisk disk_;
  DiskResultStore disk_files_{folder_ / "data/images"};
  SmallFiles small_files_{disk_.files()};
  std::vector<std::string> heard_;
  std::unique_ptr<JobStore> store_;
};

TEST_F(StorageTest, AResultWithoutRoomIsATroubleThatChangesOfTheDatabaseDoNotEnd) {
  ASSERT_TRUE(Open(InMemory()).ok());
  const TaskAttempt attempt = Run();
  small_files_.SetRoom(0);
  EXPECT_EQ(Finish(attempt).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store_->trouble().state, StorageState::kFull);
  ASSERT_TRUE(Submit().ok()) << "the database has room";
  EXPECT_EQ(store_->trouble().state, StorageState::kFull);
  clock_.Advance(absl::Seconds(7));
  EXPECT_EQ(store_->trouble().duration, absl::Seconds(7));
  EXPECT_EQ(store_->TryWrite().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(store_->can_write());
  small_files_.SetRoom(UINT64_MAX);
  EXPECT_TRUE(store_->TryWrite().ok());
  EXPECT_TRUE(store_->can_write());
  EXPECT_TRUE(Finish(attempt).ok());
  ExpectDone(attempt);
  EXPECT_THAT(heard_, ElementsAre("full", "ok")) << "once each";
  EXPECT_THAT(*small_files_.List(), testing::SizeIs(1)) << "nothing is left of the trials";
}

TEST_F(StorageTest, RoomForLessThanTheResultThatFailedIsNoRoom) {
  constexpr size_t kLarge = 300'000;
  ASSERT_TRUE(Open(InMemory()).ok());
  const TaskAttempt large = Run(), small = Run();
  small_files_.SetRoom(200'000);
  EXPECT_FALSE(Finish(large, kLarge).ok());
  EXPECT_TRUE(Finish(small, 1000).ok()) << "it has room";
  EXPECT_FALSE(store_->TryWrite().ok());
  EXPECT_FALSE(store_->can_write());
  small_files_.SetRoom(kLarge);
  EXPECT_TRUE(store_->TryWrite().ok());
  EXPECT_TRUE(Finish(large, kLarge).ok());
  EXPECT_THAT(heard_, ElementsAre("full", "ok"));
}

TEST_F(StorageTest, AFullDatabaseIsNotOverWhileResultsHaveNoRoom) {
  ASSERT_TRUE(Open(InMemory()).ok());
  disk_.Plan(DiskFault::kFull, 0);
  EXPECT_FALSE(Submit().ok());
  disk_.Plan(DiskFault::kNone, 0);
  small_files_.SetRoom(1000);
  EXPECT_FALSE(store_->TryWrite().ok()) << "what is left is the log's";
  small_files_.SetRoom(UINT64_MAX);
  EXPECT_TRUE(store_->TryWrite().ok());
  EXPECT_THAT(heard_, ElementsAre("full", "ok"));
}

TEST_F(StorageTest, ATroubleIsAsGraveAsTheGravestThingItBrought) {
  StorageHealth health(clock_, Hear());
  health.Fail(StorageState::kFailing, absl::UnavailableError("a"));
  health.Fail(StorageState::kFull, absl::ResourceExhaustedError("b"));
  EXPECT_EQ(health.trouble().failure, absl::UnavailableError("a"));
  const int64_t before = health.failures();
  health.Fail(StorageState::kFailing, absl::UnavailableError("c"));
  health.Recover(before);
  EXPECT_EQ(health.trouble().state, StorageState::kFailing) << "a trial that was superseded ends nothing";
  health.Recover(health.failures());
  EXPECT_EQ(health.trouble().state, StorageState::kOk);
  health.Fail(StorageState::kDamaged, absl::DataLossError("d"));
  health.Recover(health.failures());
  EXPECT_EQ(health.trouble().state, StorageState::kDamaged) << "which no trial ends";
  EXPECT_THAT(heard_, ElementsAre("failing", "ok", "damaged"));
}

TEST_F(StorageTest, WhateverKeepsAResultFromBeingWrittenIsTheDisksDoing) {
  ASSERT_TRUE(Open(OnDisk()).ok());
  const TaskAttempt attempt = Run();
  // A file takes the place of its folder, because permissions do not stop root.
  const std::string in_the_way = absl::StrCat(folder_ / "data/images/", attempt.task < 16 ? "0" : "", attempt.task);
  folder_.Write(absl::StrCat("data/images/", attempt.task < 16 ? "0" : "", attempt.task), "");
  EXPECT_EQ(Finish(attempt).code(), absl::StatusCode::kUnavailable) << "to be made again";
  EXPECT_EQ(store_->trouble().state, StorageState::kFailing);
  fs::remove(in_the_way);
  EXPECT_TRUE(store_->TryWrite().ok());
  EXPECT_TRUE(Finish(attempt).ok());
}

TEST_F(StorageTest, AFileThatMayNotGrowIsAFullDiskForTheDatabaseToo) {
  ASSERT_TRUE(Open(OnDisk()).ok());
  rlimit unlimited = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit limited = {.rlim_cur = 1, .rlim_max = unlimited.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limited), 0);
  const absl::Status refused = Submit().status(), tried = store_->TryWrite();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_EQ(tried.code(), absl::StatusCode::kResourceExhausted) << tried;
  EXPECT_TRUE(store_->TryWrite().ok());
  EXPECT_THAT(heard_, ElementsAre("full", "ok"));
}

TEST_F(StorageTest, ADamagedPageIsFoundBeforeAnythingIsChanged) {
  for (const char* name : {"jobs", "tasks", "jobs_by_expiry", "idempotency"}) {
    ASSERT_TRUE(Open(InMemory()).ok());
    ASSERT_TRUE(Finish(Run()).ok());
    store_.reset();
    std::string& bytes = *disk_.BytesOf("jobs");
    const std::string sound = bytes;
    DamageRootOf(name, bytes, disk_.vfs(), "jobs");
    const std::string damaged = bytes;
    const absl::Status opened = Open(InMemory());
    EXPECT_EQ(opened.code(), absl::StatusCode::kDataLoss) << name << ": " << opened;
    EXPECT_THAT(std::string(opened.message()), HasSubstr("restore the data folder")) << name;
    EXPECT_EQ(bytes, damaged) << name;
    bytes = sound;
  }
}

TEST_F(StorageTest, DamageThatAChangeMeetsStaysUntilTheProcessEnds) {
  ASSERT_TRUE(Open(InMemory()).ok());
  ASSERT_TRUE(Finish(Run()).ok());
  const TaskAttempt attempt = Run();
  store_.reset();
  ASSERT_TRUE(Open(InMemory()).ok());
  const absl::StatusOr<ClaimedTask> claimed = store_->Claim(attempt.task);
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  // No job has ended since the store was opened, so the page of this index is not in memory yet.
  DamageRootOf("jobs_by_expiry", *disk_.BytesOf("jobs"), disk_.vfs(), "jobs");
  EXPECT_EQ(Finish(claimed->claim).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(store_->trouble().state, StorageState::kDamaged);
  EXPECT_EQ(store_->TryWrite().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(store_->can_write());
  EXPECT_THAT(heard_, ElementsAre("damaged"));
}

TEST_F(StorageTest, AnEmptyDatabaseWithImagesIsNotANewOne) {
  ASSERT_TRUE(Open(OnDisk()).ok());
  ASSERT_TRUE(Finish(Run()).ok());
  store_.reset();
  const std::string path = folder_ / "data/jobs.sqlite";
  fs::rename(path, folder_ / "kept");
  const auto expect_refusal = [&](const char* how) {
    const absl::Status opened = Open(OnDisk());
    EXPECT_EQ(opened.code(), absl::StatusCode::kFailedPrecondition) << how << ": " << opened;
    EXPECT_THAT(std::string(opened.message()), HasSubstr("restore the data folder")) << how;
    EXPECT_EQ(InspectJobStore(path, disk_files_).status().code(), absl::StatusCode::kFailedPrecondition) << how;
    EXPECT_THAT(*disk_files_.List(), testing::SizeIs(1)) << how;
  };
  expect_refusal("it is gone");
  fs::rename(folder_ / "data/images", folder_ / "images");
  folder_.Write("data/images/holiday.png", "a picture of another program, which a sweep would remove");
  expect_refusal("the images are others'");
  fs::remove_all(folder_ / "data/images");
  fs::rename(folder_ / "images", folder_ / "data/images");
  EXPECT_FALSE(fs::exists(path)) << "none was made";
  folder_.Write("data/jobs.sqlite", "");
  expect_refusal("it has no bytes");
  fs::remove(path);
  {
    TestFolder other;
    fs::create_directory(other / "data");
    DiskResultStore files(other / "images");
    SqliteJobStoreOptions options = OnDisk();
    options.path = other / "jobs.sqlite";
    options.files = &files;
    ASSERT_TRUE(SqliteJobStore::Open(options).ok()) << "a new one, without images";
    fs::copy(other / "jobs.sqlite", path);
  }
  expect_refusal("no job was ever in it");
  fs::rename(folder_ / "kept", path);
  EXPECT_TRUE(Open(OnDisk()).ok());
  EXPECT_THAT(Jobs(), testing::SizeIs(1));
}

TEST_F(StorageTest, TheLogOfADatabaseThatIsGoneIsKept) {
  ASSERT_TRUE(Open(OnDisk()).ok());
  ASSERT_TRUE(Submit().ok());
  const std::string path = folder_ / "data/jobs.sqlite";
  fs::copy(path + "-wal", folder_ / "log");
  store_.reset();
  fs::remove(path);
  fs::rename(folder_ / "log", path + "-wal");
  const absl::Status opened = Open(OnDisk());
  EXPECT_EQ(opened.code(), absl::StatusCode::kFailedPrecondition) << opened;
  EXPECT_THAT(std::string(opened.message()), HasSubstr("-wal"));
  EXPECT_GT(fs::file_size(path + "-wal"), 0u);
}

TEST_F(StorageTest, NothingIsAcknowledgedIntoFilesThatTheirNamesNoLongerLeadTo) {
  struct Case {
    const char* what;
    const char* moved;      // path below the folder
    const char* made = "";  // path made in its place
  };
  for (const Case& each : {Case{"removed", "data"},
                           {"covered by another disk", "data", "data/images"},
                           {"the database alone", "data/jobs.sqlite"},
                           {"its log", "data/jobs.sqlite-wal"},
                           {"its lock, which would let another server in", "data/jobs.sqlite.lock"},
                           {"the images", "data/images"},
                           {"other images", "data/images", "data/images"}}) {
    heard_.clear();
    ASSERT_TRUE(Open(OnDisk()).ok());
    const TaskAttempt attempt = Run();
    fs::rename(folder_ / each.moved, folder_ / "elsewhere");
    if (*each.made != '\0') fs::create_directories(folder_ / each.made);
    EXPECT_EQ(Submit().status().code(), absl::StatusCode::kUnavailable) << each.what;
    EXPECT_EQ(Finish(attempt).code(), absl::StatusCode::kUnavailable) << each.what;
    EXPECT_EQ(store_->CheckPlace().code(), absl::StatusCode::kUnavailable) << each.what;
    EXPECT_EQ(store_->TryWrite().code(), absl::StatusCode::kUnavailable) << each.what;
    EXPECT_EQ(store_->trouble().state, StorageState::kMoved) << each.what;
    if (*each.made != '\0') fs::remove_all(folder_ / each.moved);
    fs::rename(folder_ / "elsewhere", folder_ / each.moved);
    EXPECT_TRUE(store_->TryWrite().ok()) << each.what;
    EXPECT_TRUE(Finish(attempt).ok()) << each.what;
    EXPECT_THAT(heard_, ElementsAre("moved", "ok")) << each.what;
    store_.reset();
    fs::remove_all(folder_ / "data");
  }
}

// `keeps`: whether the store keeps the descriptors of files that are read.
void ExpectReadsOnlyWhatWasOpened(const std::string& folder, bool keeps) {
  SCOPED_TRACE(keeps);
  DiskResultStore files(folder, [keeps] { return keeps ? 1 << 20 : 0; });
  ASSERT_TRUE(files.Open().ok());
  const auto opened = [&](const std::string& name) {
    EXPECT_TRUE(files.Write(name, "the picture").ok());
    absl::StatusOr<base::SharedBytes> file = files.OpenFile(name, 11);
    EXPECT_TRUE(file.ok()) << file.status();
    return *file;
  };
  const fs::path path = fs::path(folder) / "00";
  const base::SharedBytes removed = opened("00/removed"), replaced = opened("00/replaced");
  EXPECT_EQ(*removed->Read(0, 4), "the ");
  ASSERT_TRUE(files.Remove("00/removed").ok());
  ASSERT_TRUE(files.Write("00/replaced", "THE PICTURE").ok());
  if (keeps) {
    EXPECT_EQ(*removed->Read(4, 100), "picture");
    EXPECT_EQ(*base::ReadAll(*replaced), "the picture");
  } else {
    EXPECT_EQ(removed->Read(4, 100).status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(replaced->Read(4, 100).status().code(), absl::StatusCode::kDataLoss);
  }
  const base::SharedBytes cut = opened("00/cut"), written = opened("00/written");
  fs::resize_file(path / "cut", 10);
  EXPECT_EQ(cut->Read(0, 4).status().code(), absl::StatusCode::kDataLoss);
  fs::last_write_time(path / "written", fs::last_write_time(path / "written") + std::chrono::seconds(1));
  EXPECT_EQ(written->Read(0, 4).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(files.OpenFile("00/removed", 11).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(files.OpenFile("00/written", 10).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(DiskResultStoreTest, AFileThatIsReadIsTheOneThatWasOpenedOrAnError) {
  const TestFolder folder;
  ExpectReadsOnlyWhatWasOpened(folder / "kept", true);
  ExpectReadsOnlyWhatWasOpened(folder / "opened again", false);
}

TEST(DiskResultStoreTest, FilesThatAreReadKeepNoDescriptorsBeyondTheBound) {
  const TestFolder folder;
  const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(next, 0);
  close(next);
  DiskResultStore files(folder / "images", [next] { return next + 4; });
  ASSERT_TRUE(files.Open().ok());
  ASSERT_TRUE(files.Write("00/a", "the picture").ok());
  std::vector<base::SharedBytes> opened;
  for (int i = 0; i < 50; ++i) opened.push_back(*files.OpenFile("00/a", 100));
  const int last = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(last, next + 5);
  close(last);
  for (const base::SharedBytes& file : opened) EXPECT_EQ(*base::ReadAll(*file), "the picture");
}

TEST_F(StorageTest, ALookFindsThatTheFolderIsGoneBeforeAnybodyWrites) {
  ASSERT_TRUE(Open(OnDisk()).ok());
  ASSERT_TRUE(Finish(Run()).ok());
  const std::string image = store_->List(kTenant, 1, "").value().jobs[0].tasks[0].image->id;
  EXPECT_TRUE(store_->CheckPlace().ok());
  fs::rename(folder_ / "data", folder_ / "elsewhere");
  EXPECT_FALSE(store_->CheckPlace().ok());
  EXPECT_FALSE(store_->can_write());
  EXPECT_EQ(ReadBytes(store_->OpenImage(kTenant, image)).status().code(), absl::StatusCode::kUnavailable)
      << "it is not lost";
}

TEST_F(StorageTest, WhatIsKeptIsReadByItsOwnerAloneWhateverTheUmask) {
  const mode_t before = umask(0);
  ASSERT_TRUE(Open(OnDisk()).ok());
  ASSERT_TRUE(Finish(Run()).ok());
  umask(before);
  int files = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_ / "data")) {
    const fs::perms expected =
        entry.is_directory() ? fs::perms::owner_all : fs::perms::owner_read | fs::perms::owner_write;
    EXPECT_EQ(entry.status().permissions(), expected) << entry.path();
    files += entry.is_regular_file();
  }
  EXPECT_GE(files, 4) << "database, log, lock and image";
}

TEST_F(StorageTest, TheOldestEndedJobsGoWhenTheirImagesHaveMoreBytesThanTheyMay) {
  SqliteJobStoreOptions options = InMemory();
  options.retention_bytes = 2500;
  ASSERT_TRUE(Open(options).ok());
  const TaskAttempt running = Run();
  std::vector<uint64_t> done;
  for (int i = 0; i < 4; ++i) {
    clock_.Advance(absl::Seconds(1));
    const TaskAttempt attempt = Run();
    ASSERT_TRUE(Finish(attempt).ok());
    done.push_back(attempt.task);
  }
  EXPECT_EQ(store_->result_bytes(), 4000);
  EXPECT_TRUE(store_->has_too_many_bytes());
  const absl::StatusOr<SweepReport> report = store_->Sweep(1000);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->oldest, 2);
  EXPECT_EQ(report->jobs, 0);
  EXPECT_THAT(Jobs(), ElementsAre(running.task, done[2], done[3])) << "what runs is left alone, however old";
  EXPECT_THAT(*small_files_.List(), testing::SizeIs(2));
  EXPECT_EQ(store_->result_bytes(), 2000);
  EXPECT_FALSE(store_->has_too_many_bytes());

  ASSERT_TRUE(Open(options).ok());
  EXPECT_EQ(store_->result_bytes(), 2000) << "counted again from the rows";
}

TEST_F(StorageTest, TheLastEndedJobStaysHoweverLargeItIs) {
  SqliteJobStoreOptions options = InMemory();
  options.retention_bytes = 10;
  ASSERT_TRUE(Open(options).ok());
  ASSERT_TRUE(Finish(Run()).ok());
  clock_.Advance(absl::Seconds(1));
  const TaskAttempt last = Run();
  ASSERT_TRUE(Finish(last).ok());
  ASSERT_TRUE(store_->Sweep(1000).ok());
  EXPECT_THAT(Jobs(), ElementsAre(last.task));
  ASSERT_TRUE(store_->Sweep(1000).ok());
  EXPECT_FALSE(store_->has_too_many_bytes()) << "or it would be swept for ever";
}

TEST_F(StorageTest, WithoutABoundImagesMayHaveAnyNumberOfBytes) {
  ASSERT_TRUE(Open(InMemory()).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Finish(Run(), 1'000'000).ok());
  EXPECT_FALSE(store_->has_too_many_bytes());
  EXPECT_EQ(store_->Sweep(1000)->oldest, 0);
  EXPECT_EQ(store_->result_bytes(), 3'000'000);
  clock_.Advance(absl::Hours(25));
  EXPECT_EQ(store_->Sweep(1000)->jobs, 3);
  EXPECT_EQ(store_->result_bytes(), 0);
}

}  // namespace
}  // namespace tessera::server
