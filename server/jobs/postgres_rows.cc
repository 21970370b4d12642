#include "server/jobs/postgres_rows.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/jobs/postgres_schema.h"
#include "server/jobs/stored_job.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxErrorBytes = 4096;

#define TASK_COLUMNS "t.number, t.job, t.state, t.attempt, t.deaths, t.isolated, t.owner"
#define ERROR_COLUMNS "t.error_code, t.error, t.error_field"
constexpr int kOwner = 6;
constexpr int kAfterTask = 7;  // index of the first column after TASK_COLUMNS

std::optional<absl::Time> TimeOf(std::optional<int64_t> microseconds) {
  if (!microseconds) return std::nullopt;
  return absl::FromUnixMicros(*microseconds);
}

absl::StatusCode CodeFrom(int64_t number) {
  const bool known = number > 0 && number <= static_cast<int64_t>(absl::StatusCode::kUnauthenticated);
  return known ? static_cast<absl::StatusCode>(number) : absl::StatusCode::kUnknown;
}

absl::Status CheckRequest(absl::string_view request, absl::string_view checksum) {
  if (base::Sha256Of(request) == checksum) return absl::OkStatus();
  return absl::DataLossError("the stored job is damaged: its checksum is wrong");
}

// Reads a row that begins with TASK_COLUMNS.
TaskRow TaskFrom(const PostgresRows& rows, int row) {
  return {.number = static_cast<uint64_t>(rows.Int(row, 0)),
          .job = static_cast<uint64_t>(rows.Int(row, 1)),
          .state = static_cast<TaskState>(rows.Int(row, 2)),  // the table allows no others
          .attempt = static_cast<int32_t>(rows.Int(row, 3)),
          .blame = {.deaths = static_cast<int32_t>(rows.Int(row, 4)), .isolated = rows.Int(row, 5) != 0}};
}

// Reads ERROR_COLUMNS from `column` on.
absl::Status ErrorFrom(const PostgresRows& rows, int row, int column) {
  if (rows.IsNull(row, column)) return absl::OkStatus();
  return base::WithField(absl::Status(CodeFrom(rows.Int(row, column)), rows.Bytes(row, column + 1)),
                         rows.Bytes(row, column + 2));
}

std::vector<uint64_t> NumbersOf(const PostgresRows& rows) {
  std::vector<uint64_t> numbers;
  for (int row = 0; row < rows.size(); ++row) numbers.push_back(static_cast<uint64_t>(rows.Int(row, 0)));
  return numbers;
}

// Returns the only column of the statement's rows.
absl::StatusOr<std::vector<uint64_t>> Numbers(absl::StatusOr<PostgresRows> rows) {
  if (!rows.ok()) return rows.status();
  return NumbersOf(*rows);
}

// Running time until which a job that ends now is kept. Another server may have measured more than is stored, but by
// less than the length of a lease.
#define KEPT_UNTIL                                                                                             \
  "GREATEST($1::bigint, (SELECT running FROM store)) + $2::bigint + CASE WHEN EXISTS(SELECT 1 FROM servers o " \
  "WHERE o.id <> $3::bigint AND o.expires > clock_timestamp()) THEN $4::bigint ELSE 0 END"
std::vector<PostgresValue> KeptUntilValues(const SharingServer& server, const TaskMove& move) {
  return {absl::ToInt64Microseconds(move.running), absl::ToInt64Microseconds(move.retention), server.id,
          absl::ToInt64Microseconds(server.lease)};
}

// Updates the jobs' states from their tasks by the rules of StateOf; for jobs that `move` ends, the retention starts.
absl::Status UpdateJobStates(PostgresConnection& database, absl::Span<const uint64_t> jobs, const SharingServer& server,
                             const TaskMove& move) {
  std::vector<PostgresValue> values = KeptUntilValues(server, move);
  values.push_back(PostgresValue::Numbers(jobs));
  return database
      .Query(
          "UPDATE jobs j SET state = s.state, kept_until = CASE WHEN s.state >= 2 THEN "
          "COALESCE(j.kept_until, " KEPT_UNTIL
          ") ELSE j.kept_until END FROM (SELECT t.job, CASE WHEN bool_or(t.state = 1) THEN 1 WHEN bool_or(t.state = 0) "
          "THEN CASE WHEN bool_and(t.state = 0) THEN 0 ELSE 1 END WHEN bool_or(t.state IN (3, 5)) THEN 3 WHEN "
          "bool_or(t.state = 4) THEN 4 ELSE 2 END AS state FROM tasks t WHERE t.job = ANY($5::bigint[]) GROUP BY "
          "t.job) s "
          "WHERE j.number = s.job",
          values)
      .status();
}

void AddTask(const PostgresRows& rows, int row, const absl::Status& damage, const RecordIds& ids,
             absl::string_view token, ServerId server, JobRecord& record) {
  const TaskRow task_row = TaskFrom(rows, row);
  constexpr int kColumn = kAfterTask;
  TaskRecord task{.id = task_row.number,
                  .index = static_cast<int32_t>(task_row.number - task_row.job),
                  .state = task_row.state,
                  .attempt = task_row.attempt,
                  .elsewhere = task_row.state == TaskState::kRunning && rows.OptionalInt(row, kOwner) != server,
                  .blame = task_row.blame,
                  .started = TimeOf(rows.OptionalInt(row, kColumn + 3)),
                  .ended = TimeOf(rows.OptionalInt(row, kColumn + 4)),
                  .error = ErrorFrom(rows, row, kColumn)};
  if (task.error.ok()) task.error = damage;
  if (task.state == TaskState::kDone) {
    absl::StatusOr<StoredImage> image = ParseStoredImage(rows.Bytes(row, kColumn + 5));
    if (image.ok()) {
      image->id = ids.ImageId(task.id, token);
      task.image = *std::move(image);
    } else {
      task.state = TaskState::kFailed;
      task.error = image.status();
    }
  }
  record.tasks.push_back(std::move(task));
}

}  // namespace

absl::StatusOr<uint64_t> TakeNumber(PostgresConnection& database) {
  ASSIGN_OR_RETURN(const PostgresRows row, database.Query("SELECT nextval('job_numbers')"));
  return static_cast<uint64_t>(row.Int(0, 0));
}

absl::StatusOr<bool> InsertJob(PostgresConnection& database, const JobRow& job) {
  const int64_t number = static_cast<int64_t>(job.number);
  ASSIGN_OR_RETURN(
      const PostgresRows inserted,
      database.Query(
          "INSERT INTO jobs(number, token, tenant, tasks, created, deadline, request, checksum) VALUES($1::bigint, "
          "$2::text, $3::text, $4::integer, $5::bigint, $6::bigint, $7::bytea, $8::bytea) ON CONFLICT (token) DO "
          "NOTHING",
          {number, PostgresValue::Text(job.token), PostgresValue::Text(job.tenant), job.tasks,
           absl::ToUnixMicros(job.created),
           job.deadline ? PostgresValue(absl::ToUnixMicros(*job.deadline)) : PostgresValue::Null(),
           PostgresValue::Bytes(job.request), PostgresValue::Bytes(base::Sha256Of(job.request))}));
  if (inserted.changed() == 0) return false;
  RETURN_IF_ERROR(database.Run(
      "INSERT INTO tasks(number, job) SELECT n, $1::bigint FROM generate_series($1::bigint, $2::bigint) AS n",
      {number, number + job.tasks - 1}));
  return true;
}

absl::StatusOr<bool> InsertIdempotencyKey(PostgresConnection& database, const JobRow& job, const std::string& key_hash,
                                          const std::string& digest) {
  ASSIGN_OR_RETURN(const PostgresRows inserted,
                   database.Query("INSERT INTO idempotency(tenant, key_hash, digest, job) VALUES($1::text, $2::bytea, "
                                  "$3::bytea, $4::bigint) ON CONFLICT DO NOTHING",
                                  {PostgresValue::Text(job.tenant), PostgresValue::Bytes(key_hash),
                                   PostgresValue::Bytes(digest), static_cast<int64_t>(job.number)}));
  return inserted.changed() > 0;
}

absl::StatusOr<std::optional<KnownKey>> FindIdempotencyKey(PostgresConnection& database, const std::string& tenant,
                                                           const std::string& key_hash) {
  ASSIGN_OR_RETURN(
      const PostgresRows rows,
      database.Query("SELECT job, digest FROM idempotency WHERE tenant = $1::text AND key_hash = $2::bytea",
                     {PostgresValue::Text(tenant), PostgresValue::Bytes(key_hash)}));
  if (rows.size() == 0) return std::optional<KnownKey>();
  return std::optional<KnownKey>(
      {.job = static_cast<uint64_t>(rows.Int(0, 0)), .digest = std::string(rows.Bytes(0, 1))});
}

absl::Status LockJobs(PostgresConnection& database, absl::Span<const uint64_t> tasks) {
  return database.Run(
      "SELECT number FROM jobs WHERE number IN (SELECT job FROM tasks WHERE number = ANY($1::bigint[])) ORDER BY "
      "number "
      "FOR UPDATE",
      {PostgresValue::Numbers(tasks)});
}

absl::StatusOr<OwnedTask> LockTask(PostgresConnection& database, uint64_t task) {
  RETURN_IF_ERROR(LockJobs(database, {task}));
  return FindOwnedTask(database, task);
}

absl::StatusOr<OwnedTask> FindOwnedTask(PostgresConnection& database, uint64_t task) {
  ASSIGN_OR_RETURN(const PostgresRows rows, database.Query("SELECT " TASK_COLUMNS ", " ERROR_COLUMNS
                                                           ", t.image FROM tasks t WHERE t.number = $1::bigint",
                                                           {static_cast<int64_t>(task)}));
  if (rows.size() == 0) return absl::NotFoundError("there is no such task");
  return OwnedTask{.row = TaskFrom(rows, 0),
                   .owner = rows.OptionalInt(0, kOwner),
                   .error = ErrorFrom(rows, 0, kAfterTask),
                   .image = std::string(rows.Bytes(0, kAfterTask + 3))};
}

absl::Status CheckAttempt(const OwnedTask& task, const TaskAttempt& attempt, ServerId server) {
  const TaskRow& row = task.row;
  if (row.state != TaskState::kRunning) {
    return absl::FailedPreconditionError(absl::StrCat("the task is ", TaskStateName(row.state), ", not running"));
  }
  if (row.attempt != attempt.attempt || task.owner != server) {
    return absl::FailedPreconditionError(
        absl::StrCat("attempt ", attempt.attempt, " is stale; the task is on attempt ", row.attempt));
  }
  return absl::OkStatus();
}

absl::Status MoveTask(PostgresConnection& database, const SharingServer& server, const TaskRow& task,
                      const TaskMove& move, const TaskOwner& owner) {
  RETURN_IF_ERROR(CheckMove(task.state, move.to));
  const bool starts = move.to == TaskState::kRunning, done = move.to == TaskState::kDone;
  const Blame blame = move.blame.value_or(task.blame);
  const int64_t now = absl::ToUnixMicros(move.now);
  const std::string field = base::FieldOf(move.error);
  RETURN_IF_ERROR(database.Run(
      "UPDATE tasks SET state = $2::smallint, attempt = $3::integer, deaths = $4::integer, isolated = $5::integer <> "
      "0, "
      "owner = COALESCE($6::bigint, owner), started = COALESCE($7::bigint, started), ended = $8::bigint, error_code = "
      "$9::integer, error = $10::bytea, error_field = $11::text, image = $12::bytea, bytes = $13::bigint WHERE number "
      "= "
      "$1::bigint",
      {static_cast<int64_t>(task.number), static_cast<int64_t>(move.to), task.attempt + (starts ? 1 : 0), blame.deaths,
       blame.isolated ? 1 : 0, PostgresValue(owner.owner), starts ? PostgresValue(now) : PostgresValue::Null(),
       IsEnded(move.to) ? PostgresValue(now) : PostgresValue::Null(),
       move.error.ok() ? PostgresValue::Null() : PostgresValue(static_cast<int64_t>(move.error.code())),
       move.error.ok() ? PostgresValue::Null() : PostgresValue::Bytes(move.error.message().substr(0, kMaxErrorBytes)),
       field.empty() ? PostgresValue::Null() : PostgresValue::Text(field),
       done ? PostgresValue::Bytes(move.image) : PostgresValue::Null(),
       done ? PostgresValue(owner.bytes) : PostgresValue::Null()}));
  return UpdateJobStates(database, {task.job}, server, move);
}

absl::StatusOr<std::string> ReadRequest(PostgresConnection& database, uint64_t job) {
  ASSIGN_OR_RETURN(
      const PostgresRows rows,
      database.Query("SELECT request, checksum FROM jobs WHERE number = $1::bigint", {static_cast<int64_t>(job)}));
  if (rows.size() == 0) return absl::DataLossError("the stored job is damaged: it is missing");
  RETURN_IF_ERROR(CheckRequest(rows.Bytes(0, 0), rows.Bytes(0, 1)));
  return std::string(rows.Bytes(0, 0));
}

absl::StatusOr<std::vector<JobRecord>> ReadJobs(PostgresConnection& database, const RecordIds& ids, ServerId server,
                                                absl::Span<const uint64_t> numbers) {
  std::vector<JobRecord> jobs;
  if (numbers.empty()) return jobs;
  ASSIGN_OR_RETURN(
      const PostgresRows rows,
      database.Query(
          "SELECT " TASK_COLUMNS ", " ERROR_COLUMNS
          ", t.started, t.ended, t.image, j.token, j.tenant, j.created, j.deadline, j.kept_until, j.request, "
          "j.checksum FROM jobs j JOIN tasks t ON t.job = j.number WHERE j.number = ANY($1::bigint[]) ORDER "
          "BY j.number DESC, t.number",
          {PostgresValue::Numbers(numbers)}));
  constexpr int kJob = kAfterTask + 6;
  absl::Status damage;
  uint64_t number = 0;
  for (int row = 0; row < rows.size(); ++row) {
    const uint64_t job = static_cast<uint64_t>(rows.Int(row, 1));
    const absl::string_view token = rows.Bytes(row, kJob);
    if (job != number) {
      number = job;
      JobRecord& record = jobs.emplace_back();
      record.id = ids.JobId(job, token);
      record.tenant = std::string(rows.Bytes(row, kJob + 1));
      record.created = absl::FromUnixMicros(rows.Int(row, kJob + 2));
      record.deadline = TimeOf(rows.OptionalInt(row, kJob + 3));
      if (!rows.IsNull(row, kJob + 4)) record.kept_until = absl::Microseconds(rows.Int(row, kJob + 4));
      damage = CheckRequest(rows.Bytes(row, kJob + 5), rows.Bytes(row, kJob + 6));
      StoredJob stored;
      if (damage.ok()) damage = ParseStoredJob(rows.Bytes(row, kJob + 5), stored);
      if (damage.ok()) {
        record.request = std::move(stored.request);
        record.trace_parent = std::move(stored.trace_parent);
      }
    }
    AddTask(rows, row, damage, ids, token, server, jobs.back());
    jobs.back().request.count = static_cast<int32_t>(jobs.back().tasks.size());
  }
  return jobs;
}

absl::StatusOr<JobRecord> ReadJob(PostgresConnection& database, const RecordIds& ids, ServerId server,
                                  const std::string& tenant, const std::string& id) {
  ASSIGN_OR_RETURN(const uint64_t number, ids.JobNumber(id));
  ASSIGN_OR_RETURN(std::vector<JobRecord> jobs, ReadJobs(database, ids, server, {number}));
  if (jobs.empty() || jobs[0].tenant != tenant || jobs[0].id != id) {
    return absl::NotFoundError("there is no such job");
  }
  return std::move(jobs[0]);
}

absl::StatusOr<std::vector<uint64_t>> JobsOf(PostgresConnection& database, absl::Span<const uint64_t> tasks) {
  return Numbers(database.Query("SELECT DISTINCT job FROM tasks WHERE number = ANY($1::bigint[])",
                                {PostgresValue::Numbers(tasks)}));
}

absl::StatusOr<std::vector<uint64_t>> KnownTasks(PostgresConnection& database, absl::Span<const uint64_t> tasks) {
  return Numbers(
      database.Query("SELECT number FROM tasks WHERE number = ANY($1::bigint[])", {PostgresValue::Numbers(tasks)}));
}

absl::StatusOr<std::vector<uint64_t>> ListJobs(PostgresConnection& database, const std::string& tenant,
                                               std::optional<JobState> state, uint64_t before, int32_t limit) {
  if (!state.has_value()) {
    return Numbers(
        database.Query("SELECT number FROM jobs WHERE tenant = $1::text AND number < $2::bigint ORDER BY "
                       "number DESC LIMIT $3::bigint",
                       {PostgresValue::Text(tenant), static_cast<int64_t>(before), limit}));
  }
  return Numbers(
      database.Query("SELECT number FROM jobs WHERE tenant = $1::text AND number < $2::bigint AND state = "
                     "$4::smallint ORDER BY number DESC LIMIT $3::bigint",
                     {PostgresValue::Text(tenant), static_cast<int64_t>(before), limit, static_cast<int64_t>(*state)}));
}

absl::StatusOr<std::vector<OpenTask>> ListOpen(PostgresConnection& database, ServerId server) {
  ASSIGN_OR_RETURN(const PostgresRows rows,
                   database.Query("SELECT number, state, attempt, owner FROM tasks WHERE state IN (0, 1)"));
  std::vector<OpenTask> open;
  for (int row = 0; row < rows.size(); ++row) {
    const auto state = static_cast<TaskState>(rows.Int(row, 1));
    open.push_back({.task = static_cast<uint64_t>(rows.Int(row, 0)),
                    .state = state,
                    .attempt = static_cast<int32_t>(rows.Int(row, 2)),
                    .elsewhere = state == TaskState::kRunning && rows.OptionalInt(row, 3) != server});
  }
  return open;
}

absl::StatusOr<std::vector<uint64_t>> LockExpired(PostgresConnection& database, absl::Duration running, int64_t limit) {
  return Numbers(
      database.Query("SELECT number FROM jobs WHERE kept_until <= $1::bigint ORDER BY kept_until LIMIT $2::bigint FOR "
                     "UPDATE SKIP LOCKED",
                     {absl::ToInt64Microseconds(running), limit}));
}

absl::StatusOr<std::vector<uint64_t>> LockEnded(PostgresConnection& database, int64_t limit) {
  return Numbers(
      database.Query("SELECT number FROM jobs WHERE kept_until IS NOT NULL ORDER BY kept_until LIMIT $1::bigint FOR "
                     "UPDATE SKIP LOCKED",
                     {limit}));
}

absl::Status DeleteJobs(PostgresConnection& database, absl::Span<const uint64_t> jobs) {
  return database.Run("DELETE FROM jobs WHERE number = ANY($1::bigint[])", {PostgresValue::Numbers(jobs)});
}

absl::StatusOr<int64_t> ResultBytes(PostgresConnection& database) {
  ASSIGN_OR_RETURN(const PostgresRows row,
                   database.Query("SELECT COALESCE(SUM(bytes), 0)::bigint FROM tasks WHERE state = 2"));
  return row.Int(0, 0);
}

absl::StatusOr<StateCounts> CountStates(PostgresConnection& database) {
  ASSIGN_OR_RETURN(const PostgresRows rows, database.Query("SELECT state, COUNT(*) FROM tasks GROUP BY state"));
  StateCounts counts{};
  for (int row = 0; row < rows.size(); ++row) counts.at(static_cast<size_t>(rows.Int(row, 0))) = rows.Int(row, 1);
  return counts;
}

absl::StatusOr<std::vector<StoredTask>> ReadQueue(PostgresConnection& database, uint64_t after, int32_t limit) {
  ASSIGN_OR_RETURN(
      const PostgresRows rows,
      database.Query("SELECT " TASK_COLUMNS
                     ", j.token, j.tenant, j.created, j.deadline, j.request, j.checksum FROM tasks t JOIN jobs j ON "
                     "j.number = t.job WHERE t.state = 0 AND t.number > $1::bigint ORDER BY t.number LIMIT $2::bigint",
                     {static_cast<int64_t>(after), limit}));
  std::vector<StoredTask> queue(static_cast<size_t>(rows.size()));
  for (int row = 0; row < rows.size(); ++row) {
    StoredTask& stored = queue[static_cast<size_t>(row)];
    stored.row.task = TaskFrom(rows, row);
    JobRow& job = stored.row.job;
    job.number = stored.row.task.job;
    job.token = std::string(rows.Bytes(row, kAfterTask));
    job.tenant = std::string(rows.Bytes(row, kAfterTask + 1));
    job.created = absl::FromUnixMicros(rows.Int(row, kAfterTask + 2));
    job.deadline = TimeOf(rows.OptionalInt(row, kAfterTask + 3));
    const absl::string_view request = rows.Bytes(row, kAfterTask + 4);
    stored.row.request = CheckRequest(request, rows.Bytes(row, kAfterTask + 5));
    if (stored.row.request.ok()) stored.row.request = ParseStoredJob(request, stored.job);
  }
  return queue;
}

absl::Status RenewLease(PostgresConnection& database, ServerId server, const std::string& name, absl::Duration lease) {
  return database.Run(
      "INSERT INTO servers(id, name, expires) VALUES($1::bigint, $2::text, clock_timestamp() + $3::bigint * interval "
      "'1 microsecond') ON CONFLICT (id) DO UPDATE SET expires = excluded.expires",
      {server, PostgresValue::Text(name), absl::ToInt64Microseconds(lease)});
}

absl::Status HoldLease(PostgresConnection& database, ServerId server, const std::string& name, absl::Duration lease) {
  while (true) {
    ASSIGN_OR_RETURN(const PostgresRows row,
                     database.Query("SELECT expires > clock_timestamp() FROM servers WHERE id = $1::bigint FOR KEY "
                                    "SHARE",
                                    {server}));
    if (row.size() > 0 && row.Int(0, 0) != 0) return absl::OkStatus();
    RETURN_IF_ERROR(RenewLease(database, server, name, lease));
  }
}

absl::Status EndLease(PostgresConnection& database, ServerId server) {
  return database.Run("UPDATE servers SET expires = '-infinity' WHERE id = $1::bigint", {server});
}

absl::StatusOr<TakenBack> TakeBackExpired(PostgresConnection& database, const SharingServer& server) {
  TakenBack taken;
  const absl::StatusOr<std::vector<uint64_t>> found = Numbers(database.Query(
      "SELECT id FROM servers WHERE id <> $1::bigint AND expires < clock_timestamp() AND (expires = '-infinity' OR "
      "pg_postmaster_start_time() + $2::bigint * interval '1 microsecond' < clock_timestamp()) ORDER BY id FOR UPDATE "
      "SKIP LOCKED",
      {server.id, absl::ToInt64Microseconds(server.lease)}));
  if (!found.ok()) return found.status();
  if (found->empty()) return taken;
  const PostgresValue servers = PostgresValue::Numbers(*found);
  ASSIGN_OR_RETURN(taken.jobs, Numbers(database.Query(
                                   "SELECT number FROM jobs WHERE number IN (SELECT job FROM tasks WHERE state = 1 AND "
                                   "owner = ANY($1::bigint[])) ORDER BY number FOR UPDATE",
                                   {servers})));
  ASSIGN_OR_RETURN(
      const PostgresRows queued,
      database.Query("UPDATE tasks SET state = 0 WHERE state = 1 AND owner = ANY($1::bigint[])", {servers}));
  taken.tasks = queued.changed();
  // None of these jobs ends by this.
  RETURN_IF_ERROR(UpdateJobStates(database, taken.jobs, server, {}));
  RETURN_IF_ERROR(database.Run("DELETE FROM servers WHERE id = ANY($1::bigint[])", {servers}));
  return taken;
}

absl::StatusOr<absl::Time> DatabaseTime(PostgresConnection& database) {
  ASSIGN_OR_RETURN(const PostgresRows row,
                   database.Query("SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint"));
  return absl::FromUnixMicros(row.Int(0, 0));
}

absl::StatusOr<absl::Time> NewestTime(PostgresConnection& database) {
  ASSIGN_OR_RETURN(const PostgresRows rows,
                   database.Query("SELECT GREATEST((SELECT MAX(created) FROM jobs), (SELECT MAX(started) FROM tasks), "
                                  "(SELECT MAX(ended) FROM tasks))"));
  return rows.IsNull(0, 0) ? absl::InfinitePast() : absl::FromUnixMicros(rows.Int(0, 0));
}

absl::Status KeepOthersJobs(PostgresConnection& database, const SharingServer& server, const TaskMove& move) {
  return database
      .Query("UPDATE jobs SET expires = NULL, kept_until = " KEPT_UNTIL " WHERE kept_until IS NULL AND state >= 2",
             KeptUntilValues(server, move))
      .status();
}

absl::StatusOr<absl::Duration> ShareRunningTime(PostgresConnection& database, ServerId server, absl::Duration running) {
  ASSIGN_OR_RETURN(const PostgresRows rows,
                   database.Query("UPDATE store SET running = GREATEST(running, CASE WHEN EXISTS(SELECT 1 FROM servers "
                                  "WHERE id = $1::bigint AND expires > clock_timestamp()) THEN $2::bigint ELSE 0 END) "
                                  "RETURNING running",
                                  {server, absl::ToInt64Microseconds(running)}));
  if (rows.size() != 1) return absl::DataLossError("the job store's database is damaged: its running time is missing");
  return absl::Microseconds(rows.Int(0, 0));
}

absl::StatusOr<absl::Duration> ReadRunningTime(PostgresConnection& database) {
  ASSIGN_OR_RETURN(const PostgresRows rows, database.Query("SELECT running FROM store"));
  if (rows.size() != 1) return absl::DataLossError("the job store's database is damaged: its running time is missing");
  return absl::Microseconds(rows.Int(0, 0));
}

absl::StatusOr<bool> HadJobs(PostgresConnection& database) {
  ASSIGN_OR_RETURN(const PostgresRows row, database.Query("SELECT is_called FROM job_numbers"));
  return row.Int(0, 0) != 0;
}

}  // namespace tessera::server
