// Tests of backups of a folder that changes meanwhile, of a disk that fails, and of what a restore replaces.
#include "server/backup/backup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files/atomic_file.h"
#include "base/files/process_lock.h"
#include "server/backup/restore.h"
#include "server/jobs/disk_result_store.h"
#include "server/jobs/new_job.h"
#include "server/jobs/schema.h"
#include "server/jobs/sqlite.h"
#include "server/jobs/sqlite_job_store.h"
#include "tests/jobs/fake_clock.h"
#include "tests/jobs/job_workload.h"
#include "tests/support/disk_calls.h"
#include "tests/support/test_folder.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kAlice[] = "alice";

// A job store and its files in the folder "data" of a test.
class Store {
 public:
  Store(const std::string& folder, FakeClock& clock) : clock_(clock), files_(folder + "/images") {
    fs::create_directories(folder);
    auto store = SqliteJobStore::Open({.path = folder + "/jobs.sqlite",
                                       .files = &files_,
                                       .clock = &clock_,
                                       .retention = absl::Hours(1),
                                       .most_committed_bytes = kWorkloadCommittedBytes});
    EXPECT_TRUE(store.ok()) << store.status();
    if (!store.ok()) return;
    store_ = *std::move(store);
    EXPECT_TRUE(store_->Recover([this](const QueuedTask& task) { queued_.push_back(task); }).ok());
  }

  JobStore& operator*() { return *store_; }
  bool is_open() const { return store_ != nullptr; }
  size_t queued() const { return queued_.size(); }

  JobRecord Submit(const std::string& key = "") {
    NewJob job = {.tenant = kAlice, .request = SmallRequest(1)};
    if (!key.empty()) job.idempotency = IdempotencyKey{.key = key, .digest = "body"};
    const auto submitted = store_->Submit(job);
    EXPECT_TRUE(submitted.ok()) << submitted.status();
    existed_ = submitted->existed;
    return submitted->job;
  }
  bool existed() const { return existed_; }

  // Returns the id of the job, which is done.
  std::string Make(size_t bytes) {
    const JobRecord job = Submit();
    const auto claimed = store_->Claim(job.tasks[0].id);
    EXPECT_TRUE(claimed.ok()) << claimed.status();
    EXPECT_TRUE(
        store_->Finish(claimed->claim, std::string(bytes, 'x'), {.width = 64, .height = 64, .layout = "serial"}).ok());
    return job.id;
  }

  // Returns the bytes of the image of a job that is done; nullopt if they cannot be read.
  std::optional<std::string> ImageOf(const std::string& id) {
    const auto job = store_->Get(kAlice, id);
    if (!job.ok() || !job->tasks[0].image) return std::nullopt;
    const auto image = store_->OpenImage(kAlice, job->tasks[0].image->id);
    if (!image.ok()) return std::nullopt;
    return (*image)->Read(0, (*image)->size()).value_or("");
  }

 private:
  FakeClock& clock_;
  DiskResultStore files_;
  std::vector<QueuedTask> queued_;
  std::unique_ptr<JobStore> store_;
  bool existed_ = false;
};

class BackupTest : public testing::Test {
 protected:
  absl::StatusOr<BackupManifest> BackUpTo(std::string& archive, BackupOptions options = {}) {
    options.data_folder = Data();
    return BackUp(options, [&](std::string_view bytes) {
      archive += bytes;
      return absl::OkStatus();
    });
  }

  static absl::StatusOr<RestoreSummary> RestoreTo(const std::string& folder, const std::string& archive,
                                                  bool replace = false) {
    std::string_view rest = archive;
    return Restore({.data_folder = folder, .replace = replace}, [&](size_t count) -> absl::StatusOr<std::string> {
      const std::string piece(rest.substr(0, count));
      rest.remove_prefix(piece.size());
      return piece;
    });
  }

  std::string Data() const { return folder_ / "data"; }
  std::string Restored() const { return folder_ / "restored"; }

  TestFolder folder_;
  FakeClock clock_;
};

constexpr size_t kLarge = 5000, kSmall = 100;  // an image in a file, and one in the database

TEST_F(BackupTest, JobsAndImagesOfAStoreInUseAreThereAfterARestore) {
  std::string archive;
  std::vector<std::string> done;
  JobRecord waiting;
  {
    Store store(Data(), clock_);
    for (const size_t bytes : {kLarge, kSmall, kLarge}) done.push_back(store.Make(bytes));
    waiting = store.Submit("key");
    folder_.Write("data/adapters/a.safetensors", "adapter");
    folder_.Write("data/adapters/.incoming-1", "half an adapter");
    folder_.Write("data/contents/owner/digest/adapter_config.json", "{}");
    const auto manifest = BackUpTo(archive, {.now_s = 77});
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    EXPECT_EQ(manifest->files.size(), 5U);
    EXPECT_EQ(manifest->schema, SqliteJobStore::kSchemaVersion);
    EXPECT_EQ(manifest->lost_images, 0);
    EXPECT_EQ(manifest->created_s, 77);
  }
  EXPECT_FALSE(fs::exists(Data() + "/backup/jobs.sqlite"));
  const auto summary = RestoreTo(Restored(), archive);
  ASSERT_TRUE(summary.ok()) << summary.status();
  Store store(Restored(), clock_);
  ASSERT_TRUE(store.is_open());
  EXPECT_EQ(store.queued(), 1U);
  EXPECT_EQ(store.ImageOf(done[0]), std::string(kLarge, 'x'));
  EXPECT_EQ(store.ImageOf(done[1]), std::string(kSmall, 'x'));
  EXPECT_EQ(store.ImageOf(done[2]), std::string(kLarge, 'x'));
  EXPECT_EQ(store.Submit("key").id, waiting.id);
  EXPECT_TRUE(store.existed());
  EXPECT_TRUE(fs::exists(Restored() + "/contents/owner/digest/adapter_config.json"));
  EXPECT_FALSE(fs::exists(Restored() + "/adapters/.incoming-1"));
}

TEST_F(BackupTest, UsageIsRestoredWithTheJobs) {
  const UsageQuery query = {.since = absl::CivilDay(), .until = absl::CivilDay(9999)};
  const KeyUsage usage = {.key = kAlice, .model = "tiny", .images = 1, .steps = 4, .device_seconds = 0.5};
  std::string archive;
  {
    Store store(Data(), clock_);
    ASSERT_TRUE((*store).AddUsage(usage).ok());
    ASSERT_TRUE(BackUpTo(archive).ok());
  }
  ASSERT_TRUE(RestoreTo(Restored(), archive).ok());
  const auto rows = (*Store(Restored(), clock_)).Usage(query);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 1U);
  EXPECT_EQ((*rows)[0].usage, usage);
}

// Version 7 counted no usage.
TEST_F(BackupTest, ABackupOfAnOlderSchemaIsRestoredAndItsServerCountsUsage) {
  fs::create_directories(Data());
  {
    const auto database = SqliteDatabase::Open({.path = Data() + "/jobs.sqlite"});
    ASSERT_TRUE(database.ok()) << database.status();
    ASSERT_TRUE(MigrateSchema(**database, 7).ok());
  }
  std::string archive;
  const auto manifest = BackUpTo(archive);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->schema, 7);
  ASSERT_TRUE(RestoreTo(Restored(), archive).ok());
  Store store(Restored(), clock_);
  ASSERT_TRUE(store.is_open());
  EXPECT_TRUE((*store).AddUsage({.key = kAlice, .model = "tiny", .images = 1}).ok());
  EXPECT_EQ((*store).Usage({.since = absl::CivilDay(), .until = absl::CivilDay(9999)})->size(), 1U);
}

TEST_F(BackupTest, AnImageThatEndsAfterTheFilesWereListedIsInTheArchive) {
  Store store(Data(), clock_);
  store.Make(kLarge);
  std::string archive, late;
  const auto manifest = BackUpTo(archive, {.at_point = [&](absl::string_view point) {
                                   if (point == "backup.after_files") late = store.Make(kLarge);
                                 }});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_TRUE(RestoreTo(Restored(), archive).ok());
  EXPECT_EQ(Store(Restored(), clock_).ImageOf(late), std::string(kLarge, 'x'));
}

TEST_F(BackupTest, NoJobOfTheArchiveLacksAnImageThatRetentionRemovedMeanwhile) {
  Store store(Data(), clock_);
  std::string archive, late, last;
  int snapshots = 0;
  const auto manifest = BackUpTo(archive, {.at_point = [&](absl::string_view point) {
                                   if (point == "backup.after_files") late = store.Make(kLarge);
                                   if (point != "backup.after_snapshot" || ++snapshots != 1) return;
                                   clock_.Advance(absl::Hours(2));
                                   last = store.Make(kLarge);
                                   EXPECT_EQ((*store).Sweep(100)->jobs, 1);
                                 }});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(snapshots, 2);
  EXPECT_EQ(manifest->lost_images, 0);
  ASSERT_TRUE(RestoreTo(Restored(), archive).ok());
  Store restored(Restored(), clock_);
  EXPECT_TRUE(absl::IsNotFound((*restored).Get(kAlice, late).status()));
  EXPECT_EQ(restored.ImageOf(last), std::string(kLarge, 'x'));
}

TEST_F(BackupTest, AnImageThatTheDiskHasLostIsCountedAndEndsNoBackup) {
  Store store(Data(), clock_);
  store.Make(kLarge);
  fs::remove_all(Data() + "/images/01");
  const std::string kept = store.Make(kLarge);
  std::string archive;
  const auto manifest = BackUpTo(archive);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->lost_images, 1);
  ASSERT_TRUE(RestoreTo(Restored(), archive).ok());
  EXPECT_EQ(Store(Restored(), clock_).ImageOf(kept), std::string(kLarge, 'x'));
}

TEST_F(BackupTest, OneBackupIsMadeAtATimeAndRemovesWhatAKilledOneLeft) {
  const Store store(Data(), clock_);
  folder_.Write("data/backup/jobs.sqlite", "half a snapshot");
  std::string archive;
  {
    const auto other = base::ProcessLock::Take(Data() + "/backup/lock", absl::ZeroDuration());
    ASSERT_TRUE(other.ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(BackUpTo(archive).status()));
    EXPECT_TRUE(archive.empty());
  }
  EXPECT_TRUE(BackUpTo(archive).ok());
  EXPECT_FALSE(fs::exists(Data() + "/backup/jobs.sqlite"));
}

TEST_F(BackupTest, AFolderWithoutJobsIsBackedUpOnlyWhenFilesAloneAreWanted) {
  folder_.Write("data/images/01/1-1", "image");
  std::string archive;
  EXPECT_THAT(std::string(BackUpTo(archive).status().message()), HasSubstr("has no jobs.sqlite"));
  const auto manifest = BackUpTo(archive, {.files_only = true});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->schema, 0);
  ASSERT_TRUE(RestoreTo(Restored(), archive).ok());
  EXPECT_TRUE(fs::exists(Restored() + "/images/01/1-1"));
}

TEST_F(BackupTest, AFolderInUseIsNotRestoredTo) {
  Store store(Data(), clock_);
  const std::string done = store.Make(kLarge);
  std::string archive;
  ASSERT_TRUE(BackUpTo(archive).ok());
  const auto refused = RestoreTo(Data(), archive, /*replace=*/true);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("is in use"));
  EXPECT_EQ(store.ImageOf(done), std::string(kLarge, 'x'));

  fs::create_directories(Restored() + "/servers");
  const auto shared = base::ProcessLock::Take(Restored() + "/servers/host-0.lock", absl::ZeroDuration());
  ASSERT_TRUE(shared.ok());
  EXPECT_THAT(std::string(RestoreTo(Restored(), archive).status().message()), HasSubstr("a server that shares it"));
}

TEST_F(BackupTest, WhatARestoreReplacesIsNamedAndThenKept) {
  std::string archive, old;
  { Store(Data(), clock_).Make(kLarge); }
  ASSERT_TRUE(BackUpTo(archive).ok());
  { old = Store(Restored(), clock_).Make(kLarge); }
  folder_.Write("restored/jobs.sqlite-wal", "an old log");
  folder_.Write("restored/note.txt", "a note");
  const auto refused = RestoreTo(Restored(), archive);
  ASSERT_TRUE(absl::IsFailedPrecondition(refused.status()));
  EXPECT_THAT(
      std::string(refused.status().message()),
      HasSubstr(
          "images, jobs.sqlite, jobs.sqlite-wal would be moved to its folder replaced-1, and note.txt would stay"));
  EXPECT_TRUE(CheckNoRestore(Restored()).ok());
  fs::remove(Restored() + "/jobs.sqlite-wal");
  const auto replaced = RestoreTo(Restored(), archive, /*replace=*/true);
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_EQ(replaced->moved_to, Restored() + "/replaced-1");
  EXPECT_TRUE(fs::exists(Restored() + "/note.txt"));
  EXPECT_EQ(Store(replaced->moved_to, clock_).ImageOf(old), std::string(kLarge, 'x'));
  EXPECT_EQ(Store(Restored(), clock_).ImageOf(old), std::nullopt);
}

// Runs `work` in a process in which the `call`th call of the disk below `folder` fails. Returns the exit code; -1 if it
// was killed; nullopt if the call was not reached.
template <typename Work>
std::optional<int> InFaultyProcess(const std::string& folder, DiskCallFault fault, int64_t call, const Work& work) {
  const pid_t child = fork();
  if (child == 0) {
    BreakDisk(folder, fault, call);
    const int code = work() ? 0 : 1;
    _exit(RestoreDisk() ? code : 2);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status)) return -1;
  if (WEXITSTATUS(status) == 2) return std::nullopt;
  return WEXITSTATUS(status);
}

// Returns the names and bytes of all files of a data folder that are in their places.
std::string FilesOf(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    if (!entry.is_regular_file() || !CheckBackedUpName(name).ok()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[name].assign(std::istreambuf_iterator<char>(file), {});
  }
  std::string all;
  for (const auto& [name, bytes] : files) absl::StrAppend(&all, name, "\n", bytes, "\n");
  return all;
}

class BrokenDiskTest : public BackupTest, public testing::WithParamInterface<DiskCallFault> {};

TEST_P(BrokenDiskTest, NothingButAWholeBackupHasItsName) {
  {
    Store store(Data(), clock_);
    for (int i = 0; i < 2; ++i) store.Make(kLarge);
  }
  const std::string path = folder_ / "out/archive.tar";
  fs::create_directories(folder_ / "out");
  const auto back_up = [&] {
    auto file = base::AtomicFile::Create(path, {.overwrite = false});
    if (!file.ok()) return false;
    const auto sink = [&](std::string_view bytes) { return file->Append(bytes); };
    return BackUp({.data_folder = Data()}, sink).ok() && file->Commit().ok();
  };
  int64_t call = 0;
  for (; call < 1000; ++call) {
    fs::remove(path);
    const std::optional<int> code = InFaultyProcess(folder_.path(), GetParam(), call, back_up);
    if (!code) break;
    std::ifstream archive(path, std::ios::binary);
    // After the move, only the sync of the folder can fail.
    const std::string bytes((std::istreambuf_iterator<char>(archive)), {});
    if (bytes.empty()) continue;
    EXPECT_TRUE(RestoreTo(Restored(), bytes).ok()) << call;
    fs::remove_all(Restored());
  }
  EXPECT_GT(call, 10);
  EXPECT_TRUE(fs::exists(path)) << "the run without a fault made no archive";
}

TEST_P(BrokenDiskTest, ARestoreIsWholeOrKnownNotToBeAndCanBeRepeated) {
  std::string archive, done;
  { done = Store(Data(), clock_).Make(kLarge); }
  folder_.Write("data/adapters/a.safetensors", "adapter");
  ASSERT_TRUE(BackUpTo(archive).ok());
  { Store(folder_ / "old", clock_).Make(kLarge); }
  ASSERT_TRUE(RestoreTo(folder_ / "whole", archive).ok());
  const std::string whole = FilesOf(folder_ / "whole"), old = FilesOf(folder_ / "old");
  int64_t call = 0;
  for (; call < 1000; ++call) {
    fs::remove_all(Restored());
    fs::copy(folder_ / "old", Restored(), fs::copy_options::recursive);
    const std::optional<int> code = InFaultyProcess(
        Restored(), GetParam(), call, [&] { return RestoreTo(Restored(), archive, /*replace=*/true).ok(); });
    if (!code) break;
    if (CheckNoRestore(Restored()).ok()) {
      const std::string files = FilesOf(Restored());
      EXPECT_TRUE(files == whole || (files == old && code != 0)) << call;
    }
    ASSERT_TRUE(RestoreTo(Restored(), archive, /*replace=*/true).ok()) << call;
    EXPECT_EQ(FilesOf(Restored()), whole) << call;
  }
  EXPECT_EQ(Store(Restored(), clock_).ImageOf(done), std::string(kLarge, 'x'));
  EXPECT_GT(call, 10);
}

INSTANTIATE_TEST_SUITE_P(All, BrokenDiskTest,
                         testing::Values(DiskCallFault::kError, DiskCallFault::kFull, DiskCallFault::kKill),
                         [](const auto& info) {
                           return info.param == DiskCallFault::kKill   ? "Killed"
                                  : info.param == DiskCallFault::kFull ? "Full"
                                                                       : "Failing";
                         });

}  // namespace
}  // namespace tessera::server
