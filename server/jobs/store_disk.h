// What a job store needs of its disk beside the database: the result files, the places where all of it was opened, and
// one answer to whether it can be written (storage_health.h). Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "server/jobs/job_record.h"
#include "server/jobs/result_store.h"
#include "server/jobs/storage_health.h"
#include "server/jobs/storage_place.h"

namespace tessera::server {

// In the names of the files that a killed process leaves half-written; atomic_file.h makes them.
inline constexpr char kTemporaryMark[] = ".tessera-";

// The name of the file that is written to learn whether there is room again.
inline constexpr char kTrialFile[] = "trial";

// Whether there are others than those.
absl::StatusOr<bool> HoldsImages(ResultStore& results);

class StoreDisk final {
 public:
  // `database`: where its files are. All that is passed outlives it.
  StoreDisk(ResultStore& results, StoragePlace database, const base::Clock& clock, StorageHealth::OnChange on_change)
      : results_(results), database_(std::move(database)), health_(clock, std::move(on_change)) {}

  StorageHealth& health() { return health_; }
  const StorageHealth& health() const { return health_; }

  // UNAVAILABLE where something is not in the place where it was opened.
  absl::Status CheckPlace();

  // Of a change, or of a read that has found damage. What is ours alone, such as a row that is not what was written, is
  // no failure of the storage.
  void OnDatabaseFailure(const absl::Status& failure);

  // A result's file, and what its failure says of the disk.
  absl::Status Write(const std::string& name, const std::string& bytes);
  absl::Status WriteAll(absl::Span<const ResultFile> files);
  // A result of so many bytes found no room elsewhere on the disk.
  void OnResultFailure(const absl::Status& failure, uint64_t bytes);
  absl::StatusOr<base::SharedBytes> OpenFile(const std::string& name, uint64_t limit) {
    return results_.OpenFile(name, limit);
  }
  // An image of this job, from its file or as it was `committed` with its task, which may be null; all of it was read
  // and checked against its digest. NOT_FOUND where the tenant has no such image, DATA_LOSS if it is not what was
  // written, RESOURCE_EXHAUSTED if it has more bytes than `limit`.
  absl::StatusOr<base::SharedBytes> OpenImage(const JobRecord& job, const std::string& tenant, const std::string& image,
                                              const base::SharedBytes& committed, uint64_t limit);
  // A file that could not be removed is removed later.
  void Remove(const std::string& name);
  // A file as large as the largest that found no room, if there was one.
  absl::Status TryRoom();

  // The files that may belong to no task: all of them the first time, then those that could not be removed.
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
