#include "server/jobs/job_submission.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"
#include "server/api/request_limits.h"
#include "server/jobs/new_job.h"
#include "server/jobs/stored_job.h"

namespace tessera::server {
namespace {

absl::Status CheckNewJob(const NewJob& job) {
  if (job.idempotency && (job.idempotency->key.empty() || job.idempotency->key.size() > kMaxIdempotencyKeyBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("the idempotency key has ", job.idempotency->key.size(),
                                                   " bytes, valid values are 1 to ", kMaxIdempotencyKeyBytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<JobRecord>> ReadHashed(SqliteDatabase& database, const RecordIds& ids,
                                                    const std::string& tenant, const std::string& key_hash,
                                                    const std::string& digest) {
  ASSIGN_OR_RETURN(const std::optional<KnownKey> known, FindIdempotencyKey(database, tenant, key_hash));
  if (!known.has_value()) return std::nullopt;
  if (known->digest != digest) return UsedKeyError();
  return ReadJob(database, ids, known->job);
}

}  // namespace

absl::StatusOr<std::optional<JobRecord>> ReadSubmission(SqliteDatabase& database, const RecordIds& ids,
                                                        const std::string& tenant, const IdempotencyKey& key) {
  return ReadHashed(database, ids, tenant, HashOfKey(tenant, key.key), key.digest);
}

std::string HashOfKey(const std::string& tenant, const std::string& key) {
  return base::Sha256Of(absl::StrCat(tenant.size(), " ", tenant, key));
}

absl::Status UsedKeyError() {
  return absl::AlreadyExistsError(
      "this idempotency key was used before with another request; use a new key for a new request");
}

absl::StatusOr<PreparedJob> PrepareJob(NewJob job, absl::Time now) {
  RETURN_IF_ERROR(CheckNewJob(job));
  PreparedJob prepared;
  StoredJob stored{
      .tenant = std::move(job.tenant), .request = std::move(job.request), .trace_parent = std::move(job.trace_parent)};
  if (job.idempotency) {
    stored.idempotency_key_hash = HashOfKey(stored.tenant, job.idempotency->key);
    prepared.key_hash = stored.idempotency_key_hash;
    prepared.key_digest = job.idempotency->digest;
  }
  JobRow& row = prepared.row;
  ASSIGN_OR_RETURN(row.request, SerializeJob(stored));
  row.token = base::RandomId("");
  row.tenant = std::move(stored.tenant);
  row.tasks = stored.request.count;
  row.created = now;
  if (stored.request.timeout) row.deadline = row.created + *stored.request.timeout;
  prepared.request = std::make_shared<const JobRequest>(std::move(stored.request));
  prepared.trace_parent = std::move(stored.trace_parent);
  return prepared;
}

JobRecord RecordOf(PreparedJob&& job, const RecordIds& ids) {
  JobRecord record;
  const JobRow& row = job.row;
  record.id = ids.JobId(row.number, row.token);
  record.tenant = row.tenant;
  record.request = std::move(job.request);
  record.trace_parent = std::move(job.trace_parent);
  record.created = row.created;
  record.deadline = row.deadline;
  for (int32_t index = 0; index < row.tasks; ++index) {
    record.tasks.push_back({.id = row.number + static_cast<uint64_t>(index), .index = index});
  }
  return record;
}

absl::StatusOr<std::shared_ptr<JobSubmission>> JobSubmission::Make(NewJob job, absl::Time now) {
  auto submission = std::make_shared<JobSubmission>();
  ASSIGN_OR_RETURN(submission->job_, PrepareJob(std::move(job), now));
  return submission;
}

absl::Status JobSubmission::Apply(SqliteDatabase& database, const RecordIds& ids, uint64_t& next_number) {
  counts_ = {};
  result_ = {};
  JobRow& row = job_.row;
  if (!job_.key_hash.empty()) {
    ASSIGN_OR_RETURN(std::optional<JobRecord> earlier,
                     ReadHashed(database, ids, row.tenant, job_.key_hash, job_.key_digest));
    if (earlier.has_value()) {
      result_ = {.job = *std::move(earlier), .existed = true};
      return absl::OkStatus();
    }
  }
  row.number = next_number;
  next_number += static_cast<uint64_t>(row.tasks);
  RETURN_IF_ERROR(InsertJob(database, row));
  counts_[static_cast<size_t>(TaskState::kQueued)] = row.tasks;
  if (job_.key_hash.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool is_new, InsertIdempotencyKey(database, row, job_.key_hash, job_.key_digest));
  return is_new ? absl::OkStatus() : absl::InternalError("the key was found to be unknown, and is known");
}

SubmittedJob JobSubmission::TakeResult(const RecordIds& ids) {
  if (!result_.existed) result_.job = RecordOf(std::move(job_), ids);
  return std::move(result_);
}

}  // namespace tessera::server
