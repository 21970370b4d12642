#include "server/jobs/job_submission.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random_bytes.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/api/request_limits.h"
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

std::string HashOfKey(const std::string& tenant, const std::string& key) {
  return base::Sha256Of(absl::StrCat(tenant.size(), " ", tenant, key));
}

absl::StatusOr<std::optional<JobRecord>> ReadHashed(SqliteDatabase& database, const RecordIds& ids,
                                                    const std::string& tenant, const std::string& key_hash,
                                                    const std::string& digest) {
  ASSIGN_OR_RETURN(const std::optional<KnownKey> known, FindIdempotencyKey(database, tenant, key_hash));
  if (!known.has_value()) return std::nullopt;
  if (known->digest != digest) {
    return absl::AlreadyExistsError(
        "this idempotency key was used before with another request; use a new key for a new request");
  }
  return ReadJob(database, ids, known->job);
}

}  // namespace

absl::StatusOr<std::optional<JobRecord>> ReadSubmission(SqliteDatabase& database, const RecordIds& ids,
                                                        const std::string& tenant, const IdempotencyKey& key) {
  return ReadHashed(database, ids, tenant, HashOfKey(tenant, key.key), key.digest);
}

absl::StatusOr<std::shared_ptr<JobSubmission>> JobSubmission::Make(NewJob job, absl::Time now) {
  RETURN_IF_ERROR(CheckNewJob(job));
  auto submission = std::make_shared<JobSubmission>();
  StoredJob stored{
      .tenant = std::move(job.tenant), .request = std::move(job.request), .trace_parent = std::move(job.trace_parent)};
  if (job.idempotency) {
    stored.idempotency_key_hash = HashOfKey(stored.tenant, job.idempotency->key);
    submission->key_hash_ = stored.idempotency_key_hash;
    submission->key_digest_ = job.idempotency->digest;
  }
  JobRow& row = submission->row_;
  ASSIGN_OR_RETURN(row.request, SerializeJob(stored));
  row.token = base::RandomId("");
  row.tenant = std::move(stored.tenant);
  row.tasks = stored.request.count;
  row.created = now;
  if (stored.request.timeout) row.deadline = row.created + *stored.request.timeout;
  submission->request_ = std::move(stored.request);
  submission->trace_parent_ = std::move(stored.trace_parent);
  return submission;
}

absl::Status JobSubmission::Apply(SqliteDatabase& database, const RecordIds& ids, uint64_t& next_number) {
  counts_ = {};
  result_ = {};
  if (!key_hash_.empty()) {
    ASSIGN_OR_RETURN(std::optional<JobRecord> earlier, ReadHashed(database, ids, row_.tenant, key_hash_, key_digest_));
    if (earlier.has_value()) {
      result_ = {.job = *std::move(earlier), .existed = true};
      return absl::OkStatus();
    }
  }
  row_.number = next_number;
  next_number += static_cast<uint64_t>(row_.tasks);
  RETURN_IF_ERROR(InsertJob(database, row_));
  counts_[static_cast<size_t>(TaskState::kQueued)] = row_.tasks;
  return key_hash_.empty() ? absl::OkStatus() : InsertIdempotencyKey(database, row_, key_hash_, key_digest_);
}

SubmittedJob JobSubmission::TakeResult(const RecordIds& ids) {
  if (result_.existed) return std::move(result_);
  JobRecord& record = result_.job;
  record.id = ids.JobId(row_.number, row_.token);
  record.tenant = row_.tenant;
  record.request = std::move(request_);
  record.trace_parent = std::move(trace_parent_);
  record.created = row_.created;
  record.deadline = row_.deadline;
  for (int32_t index = 0; index < row_.tasks; ++index) {
    record.tasks.push_back({.id = row_.number + static_cast<uint64_t>(index), .index = index});
  }
  return std::move(result_);
}

}  // namespace tessera::server
