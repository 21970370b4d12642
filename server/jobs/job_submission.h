// JobSubmission makes one submission of a job as a change of the store: its rows and the answer for the caller. A
// submission under a known idempotency key changes nothing and returns the earlier job.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/jobs/job_store.h"
#include "server/jobs/record_ids.h"
#include "server/jobs/sqlite.h"
#include "server/jobs/sqlite_rows.h"

namespace tessera::server {

// A new job in the form of its rows, without the number.
struct PreparedJob {
  JobRow row;
  std::string key_hash, key_digest;  // empty: the job has no key
  std::shared_ptr<const JobRequest> request;
  std::string trace_parent;
};

// INVALID_ARGUMENT for a job that cannot be stored.
absl::StatusOr<PreparedJob> PrepareJob(NewJob job, absl::Time now);

// Returns the text under which an idempotency key is stored.
std::string HashOfKey(const std::string& tenant, const std::string& key);
absl::Status UsedKeyError();  // the key was used with another request before

// Returns the job as it was submitted, after its row got a number; takes the request.
JobRecord RecordOf(PreparedJob&& job, const RecordIds& ids);

class JobSubmission final {
 public:
  // See PrepareJob.
  static absl::StatusOr<std::shared_ptr<JobSubmission>> Make(NewJob job, absl::Time now);

  // May be called again after a failure. `next_number` is the next task's number, and is advanced.
  absl::Status Apply(SqliteDatabase& database, const RecordIds& ids, uint64_t& next_number);

  // After the commit: the changes of the task counts, and the answer, which can be taken once.
  const StateCounts& counts() const { return counts_; }
  SubmittedJob TakeResult(const RecordIds& ids);

 private:
  PreparedJob job_;
  StateCounts counts_{};
  SubmittedJob result_;
};

// Returns the job that was submitted under the key before; ALREADY_EXISTS if its digest differs.
absl::StatusOr<std::optional<JobRecord>> ReadSubmission(SqliteDatabase& database, const RecordIds& ids,
                                                        const std::string& tenant, const IdempotencyKey& key);

}  // namespace tessera::server
