// One submission of a job as a change of the store: its rows, and what its caller is told. A submission under an
// idempotency key that is known changes nothing and gives the job of then.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/jobs/job_rows.h"
#include "server/jobs/job_store.h"
#include "server/jobs/record_ids.h"
#include "server/jobs/sqlite.h"

namespace tessera::server {

// A new job as its rows will be, but for the number.
struct PreparedJob {
  JobRow row;
  std::string key_hash, key_digest;  // empty: it has no key
  JobRequest request;
  std::string trace_parent;
};

// INVALID_ARGUMENT for a job that cannot be kept.
absl::StatusOr<PreparedJob> PrepareJob(NewJob job, absl::Time now);

// Under what an idempotency key is kept.
std::string HashOfKey(const std::string& tenant, const std::string& key);
absl::Status UsedKeyError();  // the key came with another request before

// The job as it was submitted, once its row has a number; takes the request.
JobRecord RecordOf(PreparedJob&& job, const RecordIds& ids);

class JobSubmission final {
 public:
  // As PrepareJob.
  static absl::StatusOr<std::shared_ptr<JobSubmission>> Make(NewJob job, absl::Time now);

  // May be called again after a failure; `next_number` is that of the next task, and raised.
  absl::Status Apply(SqliteDatabase& database, const RecordIds& ids, uint64_t& next_number);

  // Once it is committed. What the counts of tasks change by, and the answer, which is taken once.
  const StateCounts& counts() const { return counts_; }
  SubmittedJob TakeResult(const RecordIds& ids);

 private:
  PreparedJob job_;
  StateCounts counts_{};
  SubmittedJob result_;
};

// The job that was submitted under the key before; ALREADY_EXISTS if its digest is another one.
absl::StatusOr<std::optional<JobRecord>> ReadSubmission(SqliteDatabase& database, const RecordIds& ids,
                                                        const std::string& tenant, const IdempotencyKey& key);

}  // namespace tessera::server
