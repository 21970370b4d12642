#include "server/backup/backup.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/files/private_files.h"
#include "base/files/process_lock.h"
#include "base/macros/status_macros.h"
#include "server/backup/newest_schema.h"
#include "server/jobs/data_folder.h"
#include "server/jobs/disk_result_store.h"
#include "server/jobs/result_names.h"
#include "server/jobs/schema.h"
#include "server/jobs/sqlite.h"
#include "server/jobs/sqlite_job_store.h"
#include "server/jobs/store_disk.h"
#include "server/jobs/store_report.h"
#include "server/metadata/image_metadata.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLockTimeout = absl::Milliseconds(500);
constexpr int kMostSnapshots = 10;
constexpr int64_t kSchemaWithPictures = 6;  // from it on, an image may be in the database

// Returns the name in the archive.
std::string NameIn(const char* folder, const std::string& file) { return absl::StrCat(folder, "/", file); }

class Backup {
 public:
  Backup(const BackupOptions& options, ArchiveWriter::Sink sink)
      : folder_(options.data_folder),
        at_point_(options.at_point),
        snapshot_(InFolder(kBackupFolder) + "/" + kJobsFile),
        archive_(std::move(sink)) {
    archive_.manifest().program = kProgramVersion;
    archive_.manifest().created_s = options.now_s;
  }

  absl::StatusOr<BackupManifest> Run(bool files_only) {
    RETURN_IF_ERROR(CheckFolder(files_only));
    RETURN_IF_ERROR(base::MakePrivateFolder(InFolder(kBackupFolder)));
    absl::StatusOr<base::ProcessLock> lock = base::ProcessLock::Take(InFolder(kBackupFolder) + "/lock", kLockTimeout);
    if (absl::IsFailedPrecondition(lock.status())) {
      return absl::FailedPreconditionError(
          absl::StrCat("another backup of this data folder is being made: ", lock.status().message()));
    }
    RETURN_IF_ERROR(lock.status());
    const absl::Cleanup remove = [this] { RemoveSnapshot(); };
    RETURN_IF_ERROR(AddFolders());
    Reach(at_point_, "backup.after_files");
    if (!files_only) RETURN_IF_ERROR(AddJobs());
    RETURN_IF_ERROR(archive_.Finish());
    return archive_.manifest();
  }

 private:
  std::string InFolder(const char* name) const { return absl::StrCat(folder_, "/", name); }

  absl::Status CheckFolder(bool files_only) const {
    std::error_code error;
    if (fs::exists(InFolder(kRestoreFolder), error)) {
      return absl::FailedPreconditionError("a restore of this data folder has not ended");
    }
    if (files_only && fs::is_directory(folder_, error)) return absl::OkStatus();
    if (!files_only && fs::exists(InFolder(kJobsFile), error)) {
      DiskResultStore images(InFolder(kImagesFolder));
      return CheckNothingIsMissing(InFolder(kJobsFile), images);
    }
    return absl::FailedPreconditionError(absl::StrCat("\"", folder_, "\" is not the data folder of a server",
                                                      files_only ? "" : ": it has no jobs.sqlite"));
  }

  // Adds the files of the folders that were not added before. A file may be removed meanwhile.
  absl::Status AddFolders() {
    for (const char* folder : kKeptFolders) {
      DiskResultStore files(InFolder(folder));
      ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List());
      for (const std::string& file : names) {
        // Files that are being written are hidden.
        if (!CheckBackedUpName(NameIn(folder, file)).ok() || file == kTrialFile) continue;
        if (absl::Status added = AddOnce(folder, file); !added.ok() && !absl::IsNotFound(added)) return added;
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddOnce(const char* folder, const std::string& file) {
    const std::string name = NameIn(folder, file);
    return archive_.Has(name) ? absl::OkStatus() : archive_.AddFile(name, InFolder(folder) + "/" + file);
  }

  absl::Status AddJobs() {
    std::set<std::string> missing;
    for (int tried = 0; tried < kMostSnapshots; ++tried) {
      RETURN_IF_ERROR(TakeSnapshot());
      ASSIGN_OR_RETURN(const std::vector<std::string> images, ReadSnapshot());
      Reach(at_point_, "backup.after_snapshot");
      std::set<std::string> now_missing;
      for (const std::string& image : images) {
        absl::Status added = AddOnce(kImagesFolder, image);
        if (absl::IsNotFound(added)) now_missing.insert(image);
        if (!added.ok() && !absl::IsNotFound(added)) return added;
      }
      RETURN_IF_ERROR(AddFolders());
      if (std::ranges::includes(missing, now_missing)) {
        archive_.manifest().lost_images = std::ssize(now_missing);
        return archive_.AddFile(kJobsFile, snapshot_);
      }
      missing = std::move(now_missing);
    }
    return absl::UnavailableError("jobs expire faster than their images can be copied: the retention is too short");
  }

  absl::Status TakeSnapshot() {
    RemoveSnapshot();
    ASSIGN_OR_RETURN(const std::unique_ptr<SqliteDatabase> database,
                     SqliteDatabase::Open({.path = InFolder(kJobsFile)}));
    RETURN_IF_ERROR(base::MakePrivateFile(snapshot_));  // SQLite would let everyone read it
    ASSIGN_OR_RETURN(SqliteStatement copy, database->Prepare("VACUUM INTO ?"));
    return copy.BindText(1, snapshot_).Run();
  }

  // Returns the images of the snapshot that are files, and checks it.
  absl::StatusOr<std::vector<std::string>> ReadSnapshot() {
    ASSIGN_OR_RETURN(const std::unique_ptr<SqliteDatabase> database, SqliteDatabase::Open({.path = snapshot_}));
    RETURN_IF_ERROR(database->Check());
    ASSIGN_OR_RETURN(const int64_t schema, SchemaVersionOf(*database));
    if (schema < 1) return absl::DataLossError("the file is a database, but not one of a job store");
    if (schema > SqliteJobStore::kSchemaVersion) {
      return absl::FailedPreconditionError(absl::StrCat("the job store has schema version ", schema,
                                                        "; this program knows versions up to ",
                                                        SqliteJobStore::kSchemaVersion));
    }
    archive_.manifest().schema = schema;
    static_assert(static_cast<int>(TaskState::kDone) == 2);
    ASSIGN_OR_RETURN(SqliteStatement done,
                     database->Prepare(schema < kSchemaWithPictures
                                           ? "SELECT number, attempt FROM tasks WHERE state = 2"
                                           : "SELECT number, attempt FROM tasks WHERE state = 2 AND number NOT IN "
                                             "(SELECT task FROM pictures)"));
    std::vector<std::string> images;
    while (true) {
      ASSIGN_OR_RETURN(const bool row, done.Step());
      if (!row) return images;
      images.push_back(
          ResultFileName({.task = static_cast<uint64_t>(done.Int(0)), .attempt = static_cast<int32_t>(done.Int(1))}));
    }
  }

  void RemoveSnapshot() const {
    std::error_code ignored;
    for (const char* suffix : {"", "-wal", "-shm", "-journal"}) fs::remove(snapshot_ + suffix, ignored);
  }

  const std::string folder_;
  const AtPoint at_point_;
  const std::string snapshot_;  // path of the copy of the database
  ArchiveWriter archive_;
};

}  // namespace

int64_t NewestSchema() { return SqliteJobStore::kSchemaVersion; }

absl::StatusOr<BackupManifest> BackUp(const BackupOptions& options, ArchiveWriter::Sink sink) {
  return Backup(options, std::move(sink)).Run(options.files_only);
}

}  // namespace tessera::server
