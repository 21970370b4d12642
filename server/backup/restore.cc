#include "server/backup/restore.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/files/atomic_file.h"
#include "base/files/file_descriptor.h"
#include "base/files/private_files.h"
#include "base/files/process_lock.h"
#include "base/macros/status_macros.h"
#include "server/backup/newest_schema.h"
#include "server/jobs/data_folder.h"
#include "server/jobs/schema.h"
#include "server/jobs/sqlite.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kServerTimeout = absl::Milliseconds(500);
constexpr int64_t kSyncedAlone = 64;
constexpr char kReplaced[] = "replaced-";

// What a restore replaces. The log of an old database must not be applied to a new one.
constexpr std::array kReplacedNames = {"jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm",
                                       kImagesFolder, kAdaptersFolder,   kContentsFolder};

// What a data folder without jobs may have. The last one is at the root of a volume.
constexpr std::array kHarmlessNames = {kJobsLock, kServersFolder, kBackupFolder, kRestoreFolder,
                                       "workers", "certificates", "lost+found"};

absl::Status DiskError(const std::string& what, int error) {
  const std::string text = absl::StrCat("cannot write ", what, ": ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? absl::ResourceExhaustedError(text)
                                                              : absl::UnavailableError(text);
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return absl::UnavailableError(absl::StrCat("cannot list \"", folder, "\": ", error.message()));
  std::ranges::sort(names);
  return names;
}

class Restorer {
 public:
  explicit Restorer(const RestoreOptions& options)
      : folder_(options.data_folder), staged_(InFolder(kRestoreFolder)), replace_(options.replace) {}

  absl::StatusOr<RestoreSummary> Run(ArchiveReader::Source source) {
    std::error_code error;
    const bool is_new = !fs::exists(folder_, error);
    RETURN_IF_ERROR(base::MakePrivateFolder(folder_));
    absl::Status prepared = Prepare();
    if (prepared.ok()) prepared = Stage(std::move(source));
    if (!prepared.ok()) {
      // Without the lock, the staged files may be those of another restore.
      if (lock_) fs::remove_all(staged_, error);
      if (lock_ && is_new) fs::remove_all(folder_, error);
      return prepared;
    }
    RETURN_IF_ERROR(Publish());
    return summary_;
  }

 private:
  std::string InFolder(absl::string_view name) const { return absl::StrCat(folder_, "/", name); }

  absl::Status Prepare() {
    absl::StatusOr<base::ProcessLock> lock = base::ProcessLock::Take(InFolder(kJobsLock), kServerTimeout);
    if (absl::IsFailedPrecondition(lock.status())) return InUse(lock.status().message());
    RETURN_IF_ERROR(lock.status());
    lock_ = *std::move(lock);
    if (base::ProcessLock::IsTaken(InFolder(kBackupFolder) + "/lock")) return InUse("a backup of it is being made");
    std::error_code error;
    for (fs::directory_iterator entry(InFolder(kServersFolder), error), end; !error && entry != end;
         entry.increment(error)) {
      if (entry->path().extension() == ".lock" && base::ProcessLock::IsTaken(entry->path().string())) {
        return InUse("a server that shares it is running");
      }
    }
    return CheckEmpty();
  }

  absl::Status InUse(absl::string_view by) const {
    return absl::FailedPreconditionError(
        absl::StrCat("\"", folder_, "\" is in use: ", by, "; stop the server, or restore to another folder"));
  }

  absl::Status CheckEmpty() {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder_));
    std::vector<std::string> others;
    for (const std::string& name : names) {
      std::error_code error;
      if (std::ranges::find(kReplacedNames, name) != kReplacedNames.end()) {
        // A server creates empty folders.
        if (!fs::is_empty(InFolder(name), error) || error) old_.push_back(name);
      } else if (std::ranges::find(kHarmlessNames, name) == kHarmlessNames.end() && !name.starts_with(kReplaced)) {
        others.push_back(name);
      }
    }
    if (replace_ || (old_.empty() && others.empty())) return absl::OkStatus();
    std::string text = absl::StrCat("\"", folder_, "\" is not empty; with --replace, ");
    if (!old_.empty()) {
      absl::StrAppend(&text, absl::StrJoin(old_, ", "), " would be moved to its folder ", FreeName(),
                      others.empty() ? "" : ", and ");
    }
    if (!others.empty()) absl::StrAppend(&text, absl::StrJoin(others, ", "), " would stay");
    return absl::FailedPreconditionError(text);
  }

  // Returns the name of the folder for what is replaced.
  std::string FreeName() const {
    std::error_code error;
    int number = 1;
    while (fs::exists(InFolder(absl::StrCat(kReplaced, number)), error)) ++number;
    return absl::StrCat(kReplaced, number);
  }

  // Unpacks the archive, checks everything and makes it durable.
  absl::Status Stage(ArchiveReader::Source source) {
    std::error_code error;
    fs::remove_all(staged_, error);
    if (error) return DiskError("the data folder", error.value());
    RETURN_IF_ERROR(base::MakePrivateFolder(staged_));
    ArchiveReader archive(std::move(source));
    while (true) {
      ASSIGN_OR_RETURN(const std::optional<TarEntry> entry, archive.Next());
      if (!entry) break;
      RETURN_IF_ERROR(Unpack(archive, entry->name));
    }
    summary_.manifest = archive.manifest();
    RETURN_IF_ERROR(CheckJobs());
    return SyncAll();
  }

  absl::Status Unpack(ArchiveReader& archive, const std::string& name) {
    const std::string path = absl::StrCat(staged_, "/", name);
    std::string parent = fs::path(path).parent_path().string();
    if (folders_.insert(parent).second) {
      RETURN_IF_ERROR(base::MakePrivateFolder(parent));
      for (; parent != staged_; parent = fs::path(parent).parent_path().string()) folders_.insert(parent);
    }
    base::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid() || ::fchmod(file.get(), 0600) != 0) return DiskError("a file of the backup", errno);
    RETURN_IF_ERROR(archive.ReadFile([&](std::string_view bytes) {
      const int failed = base::WriteBytes(file.get(), bytes);
      return failed == 0 ? absl::OkStatus() : DiskError("a file of the backup", failed);
    }));
    if (SyncsEach(++files_) && ::fsync(file.get()) != 0) return DiskError("a file of the backup", errno);
    return file.Close() == 0 ? absl::OkStatus() : DiskError("a file of the backup", errno);
  }

  absl::Status CheckJobs() const {
    const BackupManifest& manifest = summary_.manifest;
    if (manifest.files.contains(kJobsFile) != (manifest.schema > 0)) {
      return absl::InvalidArgumentError("the archive is damaged: its manifest does not describe its job store");
    }
    if (manifest.schema == 0) return absl::OkStatus();
    if (manifest.schema > NewestSchema()) {
      return absl::FailedPreconditionError(absl::StrCat("the backup has schema version ", manifest.schema,
                                                        ", written by ", PrintableProgram(),
                                                        "; this program knows versions up to ", NewestSchema()));
    }
    ASSIGN_OR_RETURN(const std::unique_ptr<SqliteDatabase> database,
                     SqliteDatabase::Open({.path = absl::StrCat(staged_, "/", kJobsFile)}));
    RETURN_IF_ERROR(database->Check());
    ASSIGN_OR_RETURN(const int64_t version, SchemaVersionOf(*database));
    if (version == manifest.schema) return absl::OkStatus();
    return absl::DataLossError("the job store of the backup has another schema version than its manifest says");
  }

  std::string PrintableProgram() const {
    std::string name = summary_.manifest.program.substr(0, 64);
    std::erase_if(name, [](char c) { return c < ' ' || c > '~'; });
    return name;
  }

  // Whether the file of this number is synced alone. To sync the whole file system waits for all other programs too,
  // but takes less time than a sync of each of many files.
  static bool SyncsEach(int64_t number) { return number <= kSyncedAlone || !base::AtomicFile::SyncsTogether(); }

  absl::Status SyncAll() const {
    if (SyncsEach(files_)) {
      for (const std::string& folder : folders_) RETURN_IF_ERROR(base::SyncFolder(folder));
      return base::SyncFolder(staged_);
    }
    const base::FileDescriptor folder(::open(staged_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder.valid() || ::syncfs(folder.get()) != 0) return DiskError("the backup's files", errno);
    return absl::OkStatus();
  }

  absl::Status Publish() {
    if (!old_.empty()) {
      const std::string name = FreeName();
      RETURN_IF_ERROR(base::MakePrivateFolder(InFolder(name)));
      for (const std::string& old : old_) {
        RETURN_IF_ERROR(Move(InFolder(old), absl::StrCat(InFolder(name), "/", old)));
      }
      RETURN_IF_ERROR(base::SyncFolder(InFolder(name)));
      summary_.moved_to = InFolder(name);
    }
    ASSIGN_OR_RETURN(std::vector<std::string> staged, NamesIn(staged_));
    // The job store comes last.
    std::ranges::stable_partition(staged, [](const std::string& name) { return name != kJobsFile; });
    for (const std::string& name : staged) {
      RETURN_IF_ERROR(Move(absl::StrCat(staged_, "/", name), InFolder(name)));
    }
    RETURN_IF_ERROR(base::SyncFolder(folder_));
    if (::rmdir(staged_.c_str()) != 0) return DiskError("the data folder", errno);
    return base::SyncFolder(folder_);
  }

  // An empty folder at `to` is replaced.
  static absl::Status Move(const std::string& from, const std::string& to) {
    if (::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    const absl::Status failed = DiskError("the data folder", errno);
    return absl::Status(failed.code(), absl::StrCat(failed.message(), "; the restore is incomplete: repeat it"));
  }

  const std::string folder_, staged_;
  const bool replace_;
  std::optional<base::ProcessLock> lock_;
  std::vector<std::string> old_;   // names of what is moved away
  std::set<std::string> folders_;  // made below the staged one
  int64_t files_ = 0;              // unpacked
  RestoreSummary summary_;
};

}  // namespace

absl::StatusOr<RestoreSummary> Restore(const RestoreOptions& options, ArchiveReader::Source source) {
  return Restorer(options).Run(std::move(source));
}

absl::Status CheckNoRestore(const std::string& data_folder) {
  std::error_code error;
  if (!fs::exists(absl::StrCat(data_folder, "/", kRestoreFolder), error)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a restore of the data folder is running or was interrupted: repeat `tessera restore`");
}

}  // namespace tessera::server
