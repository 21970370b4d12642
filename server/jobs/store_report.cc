#include "server/jobs/store_report.h"

#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "server/jobs/process_lock.h"
#include "server/jobs/sqlite.h"

namespace tessera {

absl::StatusOr<StoreReport> InspectJobStore(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::NotFoundError("there is no job store yet");
  StoreReport report{.in_use = ProcessLock::IsTaken(path + ".lock")};
  const absl::StatusOr<std::unique_ptr<SqliteDatabase>> database = SqliteDatabase::Open({.path = path});
  if (!database.ok()) return database.status();
  absl::StatusOr<SqliteStatement> check = (*database)->Prepare("PRAGMA quick_check(1)");
  if (!check.ok()) return check.status();
  if (const absl::StatusOr<bool> row = check->Step(); !row.ok()) return row.status();
  if (const absl::string_view found = check->Bytes(0); found != "ok") {
    return absl::DataLossError(absl::StrCat("the database is damaged: ", found));
  }
  absl::StatusOr<SqliteStatement> counts =
      (*database)->Prepare("SELECT state, COUNT(*) FROM tasks WHERE state BETWEEN 0 AND 5 GROUP BY state");
  if (!counts.ok()) return counts.status();
  while (true) {
    const absl::StatusOr<bool> row = counts->Step();
    if (!row.ok()) return row.status();
    if (!*row) return report;
    report.images.at(static_cast<size_t>(counts->Int(0))) = counts->Int(1);
  }
}

}  // namespace tessera
