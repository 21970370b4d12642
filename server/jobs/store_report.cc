#include "server/jobs/store_report.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/files/process_lock.h"
#include "base/macros/status_macros.h"
#include "server/jobs/postgres_rows.h"
#include "server/jobs/sqlite_rows.h"
#include "server/jobs/store_disk.h"

namespace tessera::server {

namespace {

absl::Status CheckNoImages(const std::string& path, ResultStore& files) {
  ASSIGN_OR_RETURN(const bool has_images, HoldsImages(files));
  if (!has_images) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("there are images, but \"", path, "\", which records their owners, is missing or empty"));
}

}  // namespace

absl::Status CheckNothingIsMissing(const std::string& path, ResultStore& files) {
  const auto has_bytes = [](const std::string& file) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(file, error);
    return !error && bytes > 0;
  };
  if (has_bytes(path)) return absl::OkStatus();
  if (has_bytes(path + "-wal")) {
    return absl::FailedPreconditionError(
        absl::StrCat("\"", path, "\" is missing or empty, but its write-ahead log, with -wal after the name, is not"));
  }
  return CheckNoImages(path, files);
}

absl::Status CheckImagesAreKnown(uint64_t next, const std::string& path, ResultStore& files) {
  return next == 1 ? CheckNoImages(path, files) : absl::OkStatus();
}

absl::StatusOr<StoreReport> InspectSharedStore(const PostgresAddress& address) {
  ASSIGN_OR_RETURN(const std::unique_ptr<PostgresConnection> database, PostgresConnection::Open(address));
  ASSIGN_OR_RETURN(const PostgresRows table, database->Query("SELECT to_regclass('tessera.store') IS NOT NULL"));
  if (table.Int(0, 0) == 0) return absl::NotFoundError("there is no job store yet");
  StoreReport report;
  ASSIGN_OR_RETURN(report.images, CountStates(*database));
  ASSIGN_OR_RETURN(const PostgresRows servers,
                   database->Query("SELECT COUNT(*) FROM servers WHERE expires > clock_timestamp()"));
  report.servers = servers.Int(0, 0);
  ASSIGN_OR_RETURN(report.newest, NewestTime(*database));
  ASSIGN_OR_RETURN(report.now, DatabaseTime(*database));
  return report;
}

absl::StatusOr<StoreReport> InspectJobStore(const std::string& path, ResultStore& files) {
  RETURN_IF_ERROR(CheckNothingIsMissing(path, files));
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::NotFoundError("there is no job store yet");
  StoreReport report{.in_use = base::ProcessLock::IsTaken(path + ".lock"), .now = absl::Now()};
  ASSIGN_OR_RETURN(const std::unique_ptr<SqliteDatabase> database, SqliteDatabase::Open({.path = path}));
  RETURN_IF_ERROR(database->Check());
  const absl::StatusOr<uint64_t> next = NextNumber(*database);
  // The next number of a database without tables cannot be read.
  RETURN_IF_ERROR(CheckImagesAreKnown(next.ok() ? *next : 1, path, files));
  ASSIGN_OR_RETURN(report.newest, NewestTime(*database));
  ASSIGN_OR_RETURN(SqliteStatement counts,
                   database->Prepare("SELECT state, COUNT(*) FROM tasks WHERE state BETWEEN 0 AND 5 GROUP BY state"));
  while (true) {
    ASSIGN_OR_RETURN(const bool row, counts.Step());
    if (!row) return report;
    report.images.at(static_cast<size_t>(counts.Int(0))) = counts.Int(1);
  }
}

}  // namespace tessera::server
