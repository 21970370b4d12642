#include "server/jobs/job_rows.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fields/field_error.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "server/api/job.h"
#include "server/jobs/stored_job.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxErrorBytes = 4096;
constexpr int kRecordColumns = kTaskColumns + 6;  // index of the first one
constexpr int kOwner = kRecordColumns + 7;

absl::StatusCode CodeFrom(int64_t number) {
  const bool known = number > 0 && number <= static_cast<int64_t>(absl::StatusCode::kUnauthenticated);
  return known ? static_cast<absl::StatusCode>(number) : absl::StatusCode::kUnknown;
}

void Assign(absl::string_view from, std::string& to) { to.assign(from.data(), from.size()); }

absl::Status GoneError() { return absl::DataLossError("the stored job is damaged: it is missing"); }

absl::Status CheckRequest(absl::string_view request, absl::string_view checksum) {
  if (base::Sha256Of(request) == checksum) return absl::OkStatus();
  return absl::DataLossError("the stored job is damaged: its checksum is wrong");
}

// Reads a row of both tables. DATA_LOSS: the request differs from what was written. Reuses the memory of the job's
// strings.
absl::Status JobFrom(const SqlRow& row, JobRow& job) {
  job.number = static_cast<uint64_t>(row.Int(1));
  Assign(row.Bytes(kTaskColumns), job.token);
  Assign(row.Bytes(kTaskColumns + 1), job.tenant);
  job.created = absl::FromUnixMicros(row.Int(kTaskColumns + 2));
  job.deadline = TimeOf(row.OptionalInt(kTaskColumns + 3));
  Assign(row.Bytes(kTaskColumns + 4), job.request);
  return CheckRequest(job.request, row.Bytes(kTaskColumns + 5));
}

// Reads the job of the row, but not its task, into `record`. Returns what is damaged.
absl::Status RecordFrom(const SqlRow& row, const RecordIds& ids, JobRow& job, JobRecord& record) {
  absl::Status damage = JobFrom(row, job);
  record.id = ids.JobId(job.number, job.token);
  record.tenant = job.tenant;
  record.created = job.created;
  record.deadline = job.deadline;
  if (!row.IsNull(kRecordColumns)) record.kept_until = absl::Microseconds(row.Int(kRecordColumns));
  StoredJob stored;
  if (damage.ok()) damage = ParseStoredJob(job.request, stored);
  if (!damage.ok()) return damage;
  record.request = std::make_shared<const JobRequest>(std::move(stored.request));
  record.trace_parent = std::move(stored.trace_parent);
  return absl::OkStatus();
}

TaskRecord TaskRecordFrom(const SqlRow& row, const RecordIds& ids, const JobRow& job, const absl::Status& damage,
                          std::optional<ServerId> server) {
  const TaskRow task_row = TaskFrom(row);
  const bool is_running = task_row.state == TaskState::kRunning;
  TaskRecord task{.id = task_row.number,
                  .index = static_cast<int32_t>(task_row.number - job.number),
                  .state = task_row.state,
                  .attempt = task_row.attempt,
                  .elsewhere = is_running && server.has_value() && row.OptionalInt(kOwner) != server,
                  .blame = task_row.blame,
                  .started = TimeOf(row.OptionalInt(kRecordColumns + 1)),
                  .ended = TimeOf(row.OptionalInt(kRecordColumns + 2)),
                  .error = ErrorFrom(row, kRecordColumns + 4)};
  if (task.error.ok()) task.error = damage;
  if (task.state != TaskState::kDone) return task;
  absl::StatusOr<StoredImage> image = ParseStoredImage(row.Bytes(kRecordColumns + 3));
  if (image.ok()) {
    image->id = ids.ImageId(task.id, job.token);
    task.image = *std::move(image);
  } else {
    task.state = TaskState::kFailed;
    task.error = image.status();
  }
  return task;
}

}  // namespace

std::optional<absl::Time> TimeOf(std::optional<int64_t> microseconds) {
  if (!microseconds) return std::nullopt;
  return absl::FromUnixMicros(*microseconds);
}

TaskRow TaskFrom(const SqlRow& row) {
  const int64_t state = row.Int(2);
  return {.number = static_cast<uint64_t>(row.Int(0)),
          .job = static_cast<uint64_t>(row.Int(1)),
          .state = state >= 0 && state < kTaskStates ? static_cast<TaskState>(state) : TaskState::kFailed,
          .attempt = static_cast<int32_t>(row.Int(3)),
          .blame = {.deaths = static_cast<int32_t>(row.Int(4)), .isolated = row.Int(5) != 0}};
}

absl::Status ErrorFrom(const SqlRow& row, int column) {
  if (row.IsNull(column)) return absl::OkStatus();
  return base::WithField(absl::Status(CodeFrom(row.Int(column)), row.Bytes(column + 1)), row.Bytes(column + 2));
}

absl::StatusOr<std::vector<uint64_t>> Numbers(SqlDatabase& database, const char* sql,
                                              absl::Span<const SqlValue> values) {
  std::vector<uint64_t> numbers;
  RETURN_IF_ERROR(
      database.Visit(sql, values, [&](const SqlRow& row) { numbers.push_back(static_cast<uint64_t>(row.Int(0))); }));
  return numbers;
}

absl::StatusOr<bool> InsertJobRow(SqlDatabase& database, const char* sql, const JobRow& job) {
  ASSIGN_OR_RETURN(const int64_t inserted,
                   database.Update(sql, {static_cast<int64_t>(job.number), SqlValue::Text(job.token),
                                         SqlValue::Text(job.tenant), job.tasks, absl::ToUnixMicros(job.created),
                                         job.deadline ? SqlValue(absl::ToUnixMicros(*job.deadline)) : SqlValue::Null(),
                                         SqlValue::Bytes(job.request), SqlValue::Bytes(base::Sha256Of(job.request))}));
  return inserted > 0;
}

absl::StatusOr<bool> InsertIdempotencyKey(SqlDatabase& database, const JobRow& job, const std::string& key_hash,
                                          const std::string& digest) {
  ASSIGN_OR_RETURN(const int64_t inserted,
                   database.Update("INSERT INTO idempotency(tenant, key_hash, digest, job) VALUES($1::text, $2::bytea, "
                                   "$3::bytea, $4::bigint) ON CONFLICT DO NOTHING",
                                   {SqlValue::Text(job.tenant), SqlValue::Bytes(key_hash), SqlValue::Bytes(digest),
                                    static_cast<int64_t>(job.number)}));
  return inserted > 0;
}

absl::StatusOr<std::optional<KnownKey>> FindIdempotencyKey(SqlDatabase& database, const std::string& tenant,
                                                           const std::string& key_hash) {
  std::optional<KnownKey> known;
  RETURN_IF_ERROR(database.Visit("SELECT job, digest FROM idempotency WHERE tenant = $1::text AND key_hash = $2::bytea",
                                 {SqlValue::Text(tenant), SqlValue::Bytes(key_hash)}, [&](const SqlRow& row) {
                                   known = {.job = static_cast<uint64_t>(row.Int(0)),
                                            .digest = std::string(row.Bytes(1))};
                                 }));
  return known;
}

absl::Status CheckAttempt(const TaskRow& task, const TaskAttempt& attempt, bool is_owner) {
  if (task.state != TaskState::kRunning) {
    return absl::FailedPreconditionError(absl::StrCat("the task is ", TaskStateName(task.state), ", not running"));
  }
  if (task.attempt != attempt.attempt || !is_owner) {
    return absl::FailedPreconditionError(
        absl::StrCat("attempt ", attempt.attempt, " is stale; the task is on attempt ", task.attempt));
  }
  return absl::OkStatus();
}

absl::Status UpdateTask(SqlDatabase& database, const char* sql, const TaskRow& task, const TaskMove& move,
                        absl::Span<const SqlValue> more) {
  RETURN_IF_ERROR(CheckMove(task.state, move.to));
  const bool starts = move.to == TaskState::kRunning;
  const Blame blame = move.blame.value_or(task.blame);
  const SqlValue null = SqlValue::Null(), now = absl::ToUnixMicros(move.now);
  const std::string field = base::FieldOf(move.error);
  std::vector<SqlValue> values = {
      static_cast<int64_t>(task.number),
      static_cast<int64_t>(move.to),
      task.attempt + (starts ? 1 : 0),
      blame.deaths,
      blame.isolated ? 1 : 0,
      starts ? now : null,
      IsEnded(move.to) ? now : null,
      move.error.ok() ? null : SqlValue(static_cast<int64_t>(move.error.code())),
      move.error.ok() ? null : SqlValue::Text(move.error.message().substr(0, kMaxErrorBytes)),
      field.empty() ? null : SqlValue::Text(field),
      move.to == TaskState::kDone ? SqlValue::Bytes(move.image) : null};
  values.insert(values.end(), more.begin(), more.end());
  return database.Run(sql, values);
}

absl::StatusOr<std::string> ReadRequest(SqlDatabase& database, uint64_t job) {
  absl::StatusOr<std::string> request = GoneError();
  RETURN_IF_ERROR(database.Visit("SELECT request, checksum FROM jobs WHERE number = $1::bigint",
                                 {static_cast<int64_t>(job)}, [&](const SqlRow& row) {
                                   if (absl::Status sound = CheckRequest(row.Bytes(0), row.Bytes(1)); sound.ok()) {
                                     request = std::string(row.Bytes(0));
                                   } else {
                                     request = sound;
                                   }
                                 }));
  return request;
}

absl::StatusOr<std::vector<JobRecord>> ReadJobs(SqlDatabase& database, const char* sql,
                                                absl::Span<const SqlValue> values, const RecordIds& ids,
                                                std::optional<ServerId> server) {
  std::vector<JobRecord> jobs;
  JobRow job;
  absl::Status damage;
  RETURN_IF_ERROR(database.Visit(sql, values, [&](const SqlRow& row) {
    if (jobs.empty() || static_cast<uint64_t>(row.Int(1)) != job.number) {
      damage = RecordFrom(row, ids, job, jobs.emplace_back());
    }
    std::vector<TaskRecord>& tasks = jobs.back().tasks;
    tasks.push_back(TaskRecordFrom(row, ids, job, damage, server));
  }));
  for (JobRecord& record : jobs) {
    const auto count = static_cast<int32_t>(record.tasks.size());
    if (record.request != nullptr && record.request->count == count) continue;
    JobRequest request =
        record.request != nullptr ? *record.request : JobRequest();  // nothing is known of a damaged job
    request.count = count;
    record.request = std::make_shared<const JobRequest>(std::move(request));
  }
  return jobs;
}

absl::StatusOr<JobRecord> OnlyJob(std::vector<JobRecord> jobs, const std::string& tenant, const std::string& id) {
  if (jobs.empty() || jobs[0].tenant != tenant || jobs[0].id != id) return absl::NotFoundError("there is no such job");
  return std::move(jobs[0]);
}

absl::Status VisitQueue(SqlDatabase& database, const char* sql, absl::Span<const SqlValue> values,
                        absl::FunctionRef<void(const QueueEntry&)> visit) {
  QueueEntry entry;  // shared by all rows: a million of them reuse its strings' memory
  return database.Visit(sql, values, [&](const SqlRow& row) {
    entry.task = TaskFrom(row);
    entry.request = row.IsNull(kTaskColumns) ? GoneError() : JobFrom(row, entry.job);
    visit(entry);
  });
}

absl::StatusOr<absl::Time> NewestTime(SqlDatabase& database) {
  absl::Time newest = absl::InfinitePast();
  RETURN_IF_ERROR(database.Visit(
      "SELECT MAX(at) FROM (SELECT MAX(created) AS at FROM jobs UNION ALL SELECT MAX(started) FROM tasks UNION ALL "
      "SELECT MAX(ended) FROM tasks) AS times",
      {}, [&](const SqlRow& row) { newest = TimeOf(row.OptionalInt(0)).value_or(newest); }));
  return newest;
}

}  // namespace tessera::server
