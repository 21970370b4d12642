// StoreDisk is a job store's access to its disk apart from the database: the result files, the places where everything
// was opened, and the common state of writes (storage_health.h). Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/time/clock.h"
#include "server/jobs/job_record.h"
#include "server/jobs/result_store.h"
#include "server/jobs/storage_health.h"
#include "server/jobs/storage_place.h"

namespace tessera::server {

// Part of the names of files that a killed process leaves half-written; atomic_file.h makes them.
inline constexpr char kTemporaryMark[] = ".tessera-";

// Name of the file that is written to find out whether there is space again.
inline constexpr char kTrialFile[] = "trial";

// Returns whether there are files other than trial and temporary ones.
absl::StatusOr<bool> HoldsImages(ResultStore& results);

class StoreDisk final {
 public:
  // `database`: where its files are. All arguments outlive the object.
  StoreDisk(ResultStore& results, StoragePlace database, const base::Clock& clock, StorageHealth::OnChange on_change)
      : results_(results), database_(std::move(database)), health_(clock, std::move(on_change)) {}

  StorageHealth& health() { return health_; }
  const StorageHealth& health() const { return health_; }

  // UNAVAILABLE if something is no longer in the place where it was opened.
  absl::Status CheckPlace();

  // Reports the failure of a change, or of a read that has found damage. Errors of the store's records, such as a row
  // that differs from what was written, are not storage failures.
  void OnDatabaseFailure(const absl::Status& failure);

  // Write result files; a failure updates the state of the disk.
  absl::Status Write(const std::string& name, const std::string& bytes);
  absl::Status WriteAll(absl::Span<const ResultFile> files);
  // Reports that a result of this size did not fit elsewhere on the disk.
  void OnResultFailure(const absl::Status& failure, uint64_t bytes);
  absl::StatusOr<base::SharedBytes> OpenFile(const std::string& name, uint64_t limit) {
    return results_.OpenFile(name, limit);
  }
  // Opens an image of this job from `committed`, which holds it if it was committed with its task, or from its file if
  // `committed` is null. All of it is read and checked against its digest. NOT_FOUND: the tenant has no such image.
  // DATA_LOSS: it differs from what was written. RESOURCE_EXHAUSTED: it has more than `limit` bytes.
  absl::StatusOr<base::SharedBytes> OpenImage(const JobRecord& job, const std::string& tenant, const std::string& image,
                                              const base::SharedBytes& committed, uint64_t limit);
  // Removes a file; if that fails, a later sweep removes it.
  void Remove(const std::string& name);
  // Writes and removes a file as large as the largest result that did not fit, if there was one.
  absl::Status TryRoom();

  // Returns the files that may belong to no task: all files the first time, then those that could not be removed.
  absl::StatusOr<std::vector<std::string>> TakeCandidates();

 private:
  ResultStore& results_;
  const StoragePlace database_;
  StorageHealth health_;
  std::mutex mutex_;
  std::vector<std::string> left_over_;  // guarded by mutex_
  std::atomic<bool> has_listed_ = false;
};

}  // namespace tessera::server
