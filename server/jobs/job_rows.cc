#include "server/jobs/job_rows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/jobs/stored_job.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxErrorBytes = 4096;

// One index serves lists with and without a state: the five lists of a tenant are each in order, and are merged.
#define JOBS_IN(state) \
  "SELECT number FROM jobs INDEXED BY jobs_by_state WHERE tenant = ?1 AND state = " state " AND number < ?2"
constexpr char kAllJobs[] = JOBS_IN("0") " UNION ALL " JOBS_IN("1") " UNION ALL " JOBS_IN("2") " UNION ALL " JOBS_IN(
    "3") " UNION ALL " JOBS_IN("4") " ORDER BY number DESC LIMIT ?3";

#define TASK_COLUMNS "t.number, t.job, t.state, t.attempt, t.strikes, t.alone"
#define JOB_COLUMNS "j.token, j.tenant, j.created, j.deadline, j.request, j.checksum"
constexpr int kTaskColumns = 6;  // index of the job's first column
constexpr int kKeptUntil = 12;   // index of the first column after the job's

std::optional<absl::Time> TimeOf(std::optional<int64_t> microseconds) {
  if (!microseconds) return std::nullopt;
  return absl::FromUnixMicros(*microseconds);
}

std::optional<absl::Duration> DurationOf(std::optional<int64_t> microseconds) {
  if (!microseconds) return std::nullopt;
  return absl::Microseconds(*microseconds);
}

TaskState StateFrom(int64_t number) {
  return number >= 0 && number < kTaskStates ? static_cast<TaskState>(number) : TaskState::kFailed;
}

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

// Reads a row that begins with TASK_COLUMNS.
TaskRow TaskFrom(SqliteStatement& row) {
  return {.number = static_cast<uint64_t>(row.Int(0)),
          .job = static_cast<uint64_t>(row.Int(1)),
          .state = StateFrom(row.Int(2)),
          .attempt = static_cast<int32_t>(row.Int(3)),
          .blame = {.deaths = static_cast<int32_t>(row.Int(4)), .isolated = row.Int(5) != 0}};
}

// Reads a row that continues with JOB_COLUMNS. DATA_LOSS: the request differs from what was written. Reuses the memory
// of the job's strings.
absl::Status JobFrom(SqliteStatement& row, JobRow& job) {
  job.number = static_cast<uint64_t>(row.Int(1));
  Assign(row.Bytes(kTaskColumns), job.token);
  Assign(row.Bytes(kTaskColumns + 1), job.tenant);
  job.created = absl::FromUnixMicros(row.Int(kTaskColumns + 2));
  job.deadline = TimeOf(row.OptionalInt(kTaskColumns + 3));
  Assign(row.Bytes(kTaskColumns + 4), job.request);
  return CheckRequest(job.request, row.Bytes(kTaskColumns + 5));
}

// Runs a statement whose rows are one number each.
absl::StatusOr<std::vector<uint64_t>> Numbers(absl::StatusOr<SqliteStatement> statement) {
  if (!statement.ok()) return statement.status();
  std::vector<uint64_t> numbers;
  while (true) {
    ASSIGN_OR_RETURN(const bool row, statement->Step());
    if (!row) return numbers;
    numbers.push_back(static_cast<uint64_t>(statement->Int(0)));
  }
}

absl::StatusOr<std::optional<int64_t>> OneNumber(SqliteDatabase& database, const char* sql) {
  ASSIGN_OR_RETURN(SqliteStatement statement, database.Prepare(sql));
  ASSIGN_OR_RETURN(const bool row, statement.Step());
  if (!row) return std::optional<int64_t>();
  return statement.OptionalInt(0);
}

// Updates the job's state from its tasks; an ended job is kept until `kept_until`.
absl::Status UpdateJobState(SqliteDatabase& database, uint64_t job, absl::Duration kept_until) {
  absl::StatusOr<SqliteStatement> select = database.Prepare(
      "SELECT t.state FROM jobs j JOIN tasks t ON t.number >= j.number AND t.number < j.number + j.tasks AND t.job = "
      "j.number WHERE j.number = ?");
  if (!select.ok()) return select.status();
  select->Bind(1, static_cast<int64_t>(job));
  ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, Numbers(std::move(select)));
  std::vector<TaskState> tasks;
  for (const uint64_t number : numbers) tasks.push_back(StateFrom(static_cast<int64_t>(number)));
  const JobState state = StateOf(tasks);
  ASSIGN_OR_RETURN(SqliteStatement update,
                   database.Prepare("UPDATE jobs SET state = ?2, kept_until = COALESCE(?3, kept_until) WHERE number = "
                                    "?1 AND (state IS NOT ?2 OR (?3 IS NOT NULL AND kept_until IS NULL))"));
  update.Bind(1, static_cast<int64_t>(job)).Bind(2, static_cast<int64_t>(state));
  if (IsEnded(state)) update.Bind(3, absl::ToInt64Microseconds(kept_until));
  return update.Run();
}

absl::Status UpdateJobStates(SqliteDatabase& database, const std::vector<uint64_t>& jobs, absl::Duration kept_until) {
  for (const uint64_t job : jobs) {
    RETURN_IF_ERROR(UpdateJobState(database, job, kept_until));
  }
  return absl::OkStatus();
}

absl::Status FailUnknownStates(SqliteDatabase& database, absl::Time now, absl::Duration kept_until) {
  ASSIGN_OR_RETURN(const std::vector<uint64_t> jobs,
                   Numbers(database.Prepare(
                       "SELECT DISTINCT job FROM tasks WHERE typeof(state) <> 'integer' OR state < 0 OR state > 5")));
  ASSIGN_OR_RETURN(SqliteStatement update,
                   database.Prepare("UPDATE tasks SET state = 3, ended = ?1, error_code = 15, error = 'the stored job "
                                    "is damaged: its state is not "
                                    "known' WHERE typeof(state) <> 'integer' OR state < 0 OR state > 5"));
  RETURN_IF_ERROR(update.Bind(1, absl::ToUnixMicros(now)).Run());
  return UpdateJobStates(database, jobs, kept_until);
}

// Returns nullopt if some task is in an unknown state.
absl::StatusOr<std::optional<StateCounts>> CountKnownStates(SqliteDatabase& database) {
  // GROUP BY would sort the table by state first.
  ASSIGN_OR_RETURN(SqliteStatement select,
                   database.Prepare("SELECT COUNT(*) FILTER (WHERE state IS 0), COUNT(*) FILTER (WHERE state IS 1), "
                                    "COUNT(*) FILTER (WHERE state IS "
                                    "2), COUNT(*) FILTER (WHERE state IS 3), COUNT(*) FILTER (WHERE state IS 4), "
                                    "COUNT(*) FILTER (WHERE state IS 5), "
                                    "COUNT(*) FROM tasks"));
  if (const absl::StatusOr<bool> row = select.Step(); !row.ok()) return row.status();
  StateCounts counts{};
  int64_t known = 0;
  for (int state = 0; state < kTaskStates; ++state) {
    known += counts[static_cast<size_t>(state)] = select.Int(state);
  }
  if (known != select.Int(kTaskStates)) return std::optional<StateCounts>();
  return std::optional(counts);
}

}  // namespace

absl::Status InsertJob(SqliteDatabase& database, const JobRow& job) {
  ASSIGN_OR_RETURN(SqliteStatement insert, database.Prepare("INSERT INTO jobs(number, token, tenant, tasks, created, "
                                                            "deadline, request, checksum) VALUES(?,?,?,?,?,?,?,?)"));
  insert.Bind(1, static_cast<int64_t>(job.number)).BindText(2, job.token).BindText(3, job.tenant);
  insert.Bind(4, job.tasks).Bind(5, absl::ToUnixMicros(job.created));
  if (job.deadline) {
    insert.Bind(6, absl::ToUnixMicros(*job.deadline));
  } else {
    insert.BindNull(6);
  }
  insert.BindBlob(7, job.request).BindBlob(8, base::Sha256Of(job.request));
  RETURN_IF_ERROR(insert.Run());

  for (int32_t index = 0; index < job.tasks; ++index) {
    ASSIGN_OR_RETURN(SqliteStatement task, database.Prepare("INSERT INTO tasks(number, job, state) VALUES(?,?,0)"));
    const int64_t number = static_cast<int64_t>(job.number) + index;
    RETURN_IF_ERROR(task.Bind(1, number).Bind(2, static_cast<int64_t>(job.number)).Run());
  }
  return absl::OkStatus();
}

absl::Status InsertIdempotencyKey(SqliteDatabase& database, const JobRow& job, const std::string& key_hash,
                                  const std::string& digest) {
  ASSIGN_OR_RETURN(SqliteStatement insert,
                   database.Prepare("INSERT INTO idempotency(tenant, key_hash, digest, job) VALUES(?,?,?,?)"));
  return insert.BindText(1, job.tenant)
      .BindBlob(2, key_hash)
      .BindBlob(3, digest)
      .Bind(4, static_cast<int64_t>(job.number))
      .Run();
}

absl::StatusOr<std::optional<KnownKey>> FindIdempotencyKey(SqliteDatabase& database, const std::string& tenant,
                                                           const std::string& key_hash) {
  ASSIGN_OR_RETURN(SqliteStatement select,
                   database.Prepare("SELECT job, digest FROM idempotency WHERE tenant = ? AND key_hash = ?"));
  ASSIGN_OR_RETURN(const bool row, select.BindText(1, tenant).BindBlob(2, key_hash).Step());
  if (!row) return std::optional<KnownKey>();
  return std::optional<KnownKey>({.job = static_cast<uint64_t>(select.Int(0)), .digest = std::string(select.Bytes(1))});
}

absl::StatusOr<TaskRow> FindTask(SqliteDatabase& database, uint64_t task) {
  ASSIGN_OR_RETURN(SqliteStatement select, database.Prepare("SELECT " TASK_COLUMNS " FROM tasks t WHERE t.number = ?"));
  ASSIGN_OR_RETURN(const bool row, select.Bind(1, static_cast<int64_t>(task)).Step());
  if (!row) return absl::NotFoundError("there is no such task");
  return TaskFrom(select);
}

absl::StatusOr<TaskRow> FindAttempt(SqliteDatabase& database, const TaskAttempt& attempt) {
  absl::StatusOr<TaskRow> task = FindTask(database, attempt.task);
  if (!task.ok()) return task;
  if (task->state != TaskState::kRunning) {
    return absl::FailedPreconditionError(absl::StrCat("the task is ", TaskStateName(task->state), ", not running"));
  }
  if (task->attempt != attempt.attempt) {
    return absl::FailedPreconditionError(
        absl::StrCat("attempt ", attempt.attempt, " is stale; the task is on attempt ", task->attempt));
  }
  return task;
}

absl::Status MoveTask(SqliteDatabase& database, const TaskRow& task, const TaskMove& move, StateCounts& counts) {
  RETURN_IF_ERROR(CheckMove(task.state, move.to));
  ASSIGN_OR_RETURN(
      SqliteStatement update,
      database.Prepare(
          "UPDATE tasks SET state = ?2, attempt = ?3, strikes = ?4, alone = ?5, started = COALESCE(?6, started), "
          "ended = ?7, error_code = ?8, error = ?9, error_field = ?10, image = ?11 WHERE number = ?1"));
  const bool starts = move.to == TaskState::kRunning;
  const Blame blame = move.blame.value_or(task.blame);
  update.Bind(1, static_cast<int64_t>(task.number)).Bind(2, static_cast<int64_t>(move.to));
  update.Bind(3, task.attempt + (starts ? 1 : 0)).Bind(4, blame.deaths).Bind(5, blame.isolated ? 1 : 0);
  if (starts) update.Bind(6, absl::ToUnixMicros(move.now));
  if (IsEnded(move.to)) update.Bind(7, absl::ToUnixMicros(move.now));
  if (!move.error.ok()) {
    update.Bind(8, static_cast<int64_t>(move.error.code()));
    update.BindText(9, move.error.message().substr(0, kMaxErrorBytes));
    if (const std::string field = base::FieldOf(move.error); !field.empty()) update.BindText(10, field);
  }
  if (move.to == TaskState::kDone) update.BindBlob(11, move.image);
  RETURN_IF_ERROR(update.Run());
  --counts[static_cast<size_t>(task.state)];
  ++counts[static_cast<size_t>(move.to)];
  return UpdateJobState(database, task.job, move.running + move.retention);
}

absl::Status InsertPicture(SqliteDatabase& database, const TaskAttempt& attempt, absl::string_view bytes) {
  ASSIGN_OR_RETURN(SqliteStatement insert,
                   database.Prepare("INSERT INTO pictures(task, attempt, bytes) VALUES(?,?,?)"));
  return insert.Bind(1, static_cast<int64_t>(attempt.task)).Bind(2, attempt.attempt).BindBlob(3, bytes).Run();
}

absl::StatusOr<std::optional<uint64_t>> FindPicture(SqliteDatabase& database, uint64_t task) {
  ASSIGN_OR_RETURN(SqliteStatement select, database.Prepare("SELECT length(bytes) FROM pictures WHERE task = ?"));
  ASSIGN_OR_RETURN(const bool row, select.Bind(1, static_cast<int64_t>(task)).Step());
  if (!row) return std::optional<uint64_t>();
  return std::optional(static_cast<uint64_t>(select.Int(0)));
}

absl::StatusOr<std::optional<std::string>> ReadPicture(SqliteDatabase& database, uint64_t task, uint64_t offset,
                                                       size_t count) {
  return database.ReadBlob("pictures", "bytes", static_cast<int64_t>(task), offset, count);
}

absl::StatusOr<std::vector<PictureRow>> ListPictures(SqliteDatabase& database, int64_t limit) {
  ASSIGN_OR_RETURN(SqliteStatement select,
                   database.Prepare("SELECT task, attempt, bytes FROM pictures ORDER BY task LIMIT ?"));
  select.Bind(1, limit);
  std::vector<PictureRow> pictures;
  while (true) {
    ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return pictures;
    pictures.push_back(
        {.attempt = {.task = static_cast<uint64_t>(select.Int(0)), .attempt = static_cast<int32_t>(select.Int(1))},
         .bytes = std::string(select.Bytes(2))});
  }
}

absl::StatusOr<bool> DeletePicture(SqliteDatabase& database, uint64_t task) {
  ASSIGN_OR_RETURN(SqliteStatement remove, database.Prepare("DELETE FROM pictures WHERE task = ?"));
  RETURN_IF_ERROR(remove.Bind(1, static_cast<int64_t>(task)).Run());
  return database.Changes() > 0;
}

absl::StatusOr<std::string> ReadRequest(SqliteDatabase& database, uint64_t job) {
  ASSIGN_OR_RETURN(SqliteStatement select, database.Prepare("SELECT request, checksum FROM jobs WHERE number = ?"));
  ASSIGN_OR_RETURN(const bool row, select.Bind(1, static_cast<int64_t>(job)).Step());
  if (!row) return GoneError();
  const absl::string_view request = select.Bytes(0);
  RETURN_IF_ERROR(CheckRequest(request, select.Bytes(1)));
  return std::string(request);
}

absl::StatusOr<JobRecord> ReadJob(SqliteDatabase& database, const RecordIds& ids, uint64_t job) {
  ASSIGN_OR_RETURN(
      SqliteStatement select,
      database.Prepare(
          "SELECT " TASK_COLUMNS ", " JOB_COLUMNS ", j.kept_until, t.started, t.ended, t.error_code, t.error, "
          "t.error_field, t.image FROM jobs j JOIN tasks t ON "
          "t.number >= j.number AND t.number < j.number + j.tasks AND t.job = j.number WHERE j.number = ? ORDER BY "
          "t.number"));
  select.Bind(1, static_cast<int64_t>(job));
  JobRecord record;
  absl::Status damage;
  JobRow stored_row;
  while (true) {
    ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) break;
    if (record.tasks.empty()) {
      damage = JobFrom(select, stored_row);
      record.id = ids.JobId(job, stored_row.token);
      record.tenant = stored_row.tenant;
      record.created = stored_row.created;
      record.deadline = stored_row.deadline;
      record.kept_until = DurationOf(select.OptionalInt(kKeptUntil));
      StoredJob stored;
      if (damage.ok()) damage = ParseStoredJob(stored_row.request, stored);
      if (damage.ok()) {
        record.request = std::move(stored.request);
        record.trace_parent = std::move(stored.trace_parent);
      }
    }
    const TaskRow task_row = TaskFrom(select);
    TaskRecord task{.id = task_row.number,
                    .index = static_cast<int32_t>(task_row.number - job),
                    .state = task_row.state,
                    .attempt = task_row.attempt,
                    .blame = task_row.blame,
                    .started = TimeOf(select.OptionalInt(kKeptUntil + 1)),
                    .ended = TimeOf(select.OptionalInt(kKeptUntil + 2))};
    if (!select.IsNull(kKeptUntil + 3)) {
      task.error = base::WithField(absl::Status(CodeFrom(select.Int(kKeptUntil + 3)), select.Bytes(kKeptUntil + 4)),
                                   select.Bytes(kKeptUntil + 5));
    }
    if (task.error.ok()) task.error = damage;
    if (task.state == TaskState::kDone) {
      absl::StatusOr<StoredImage> image = ParseStoredImage(select.Bytes(kKeptUntil + 6));
      if (image.ok()) {
        image->id = ids.ImageId(task.id, stored_row.token);
        task.image = *std::move(image);
      } else {
        task.state = TaskState::kFailed;
        task.error = image.status();
      }
    }
    record.tasks.push_back(std::move(task));
  }
  if (record.tasks.empty()) return absl::NotFoundError("there is no such job");
  record.request.count = static_cast<int32_t>(record.tasks.size());
  return record;
}

absl::StatusOr<JobRecord> ReadJob(SqliteDatabase& database, const RecordIds& ids, const std::string& tenant,
                                  const std::string& id) {
  ASSIGN_OR_RETURN(const uint64_t number, ids.JobNumber(id));
  absl::StatusOr<JobRecord> job = ReadJob(database, ids, number);
  if (!job.ok()) return job;
  if (job->tenant != tenant || job->id != id) return absl::NotFoundError("there is no such job");
  return job;
}

absl::StatusOr<std::vector<uint64_t>> ListJobs(SqliteDatabase& database, const std::string& tenant,
                                               std::optional<JobState> state, uint64_t before, int32_t limit) {
  absl::StatusOr<SqliteStatement> select =
      database.Prepare(state.has_value() ? JOBS_IN("?4") " ORDER BY number DESC LIMIT ?3" : kAllJobs);
  if (!select.ok()) return select.status();
  select->BindText(1, tenant).Bind(2, static_cast<int64_t>(before)).Bind(3, limit);
  if (state.has_value()) select->Bind(4, static_cast<int64_t>(*state));
  return Numbers(std::move(select));
}

absl::StatusOr<std::vector<uint64_t>> ListExpired(SqliteDatabase& database, absl::Duration running, int64_t limit) {
  absl::StatusOr<SqliteStatement> select =
      database.Prepare("SELECT number FROM jobs WHERE kept_until <= ? ORDER BY kept_until LIMIT ?");
  if (!select.ok()) return select.status();
  select->Bind(1, absl::ToInt64Microseconds(running)).Bind(2, limit);
  return Numbers(std::move(select));
}

absl::StatusOr<std::vector<uint64_t>> ListEnded(SqliteDatabase& database, int64_t limit) {
  absl::StatusOr<SqliteStatement> select =
      database.Prepare("SELECT number FROM jobs WHERE kept_until IS NOT NULL ORDER BY kept_until LIMIT ?");
  if (!select.ok()) return select.status();
  select->Bind(1, limit);
  return Numbers(std::move(select));
}

absl::Status DeleteJob(SqliteDatabase& database, const JobRecord& job, StateCounts& counts) {
  const uint64_t number = job.tasks[0].id - static_cast<uint64_t>(job.tasks[0].index);
  for (const TaskRecord& task : job.tasks) {
    ASSIGN_OR_RETURN(const TaskRow row, FindTask(database, task.id));
    --counts[static_cast<size_t>(row.state)];
    ASSIGN_OR_RETURN(SqliteStatement remove, database.Prepare("DELETE FROM tasks WHERE number = ?"));
    RETURN_IF_ERROR(remove.Bind(1, static_cast<int64_t>(task.id)).Run());
    if (const absl::StatusOr<bool> picture = DeletePicture(database, task.id); !picture.ok()) return picture.status();
  }
  for (const char* sql : {"DELETE FROM idempotency WHERE job = ?", "DELETE FROM jobs WHERE number = ?"}) {
    ASSIGN_OR_RETURN(SqliteStatement remove, database.Prepare(sql));
    RETURN_IF_ERROR(remove.Bind(1, static_cast<int64_t>(number)).Run());
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> QueueRunning(SqliteDatabase& database) {
  ASSIGN_OR_RETURN(
      const std::vector<uint64_t> jobs,
      Numbers(database.Prepare("SELECT DISTINCT job FROM tasks INDEXED BY tasks_running WHERE state = 1")));
  RETURN_IF_ERROR(database.Execute("UPDATE tasks SET state = 0 WHERE state = 1"));
  const int64_t tasks = database.Changes();
  // None of these jobs has ended.
  RETURN_IF_ERROR(UpdateJobStates(database, jobs, absl::InfiniteDuration()));
  return tasks;
}

absl::StatusOr<FinishedImages> FailDamagedImages(SqliteDatabase& database, absl::Duration kept_until) {
  ASSIGN_OR_RETURN(SqliteStatement select, database.Prepare("SELECT number, job, image FROM tasks WHERE state = 2"));
  FinishedImages finished;
  std::vector<std::pair<int64_t, absl::Status>> damaged;
  std::vector<uint64_t> jobs;
  while (true) {
    ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) break;
    const absl::StatusOr<StoredImage> image = ParseStoredImage(select.Bytes(2));
    if (image.ok()) finished.bytes += static_cast<int64_t>(image->bytes);
    if (!absl::IsDataLoss(image.status())) continue;
    damaged.emplace_back(select.Int(0), image.status());
    jobs.push_back(static_cast<uint64_t>(select.Int(1)));
  }
  for (const auto& [task, error] : damaged) {
    ASSIGN_OR_RETURN(
        SqliteStatement update,
        database.Prepare("UPDATE tasks SET state = 3, error_code = ?2, error = ?3, image = NULL WHERE number = ?1"));
    update.Bind(1, task).Bind(2, static_cast<int64_t>(error.code())).BindText(3, error.message());
    RETURN_IF_ERROR(update.Run());
  }
  RETURN_IF_ERROR(UpdateJobStates(database, jobs, kept_until));
  finished.damaged = static_cast<int64_t>(damaged.size());
  return finished;
}

absl::StatusOr<StateCounts> CountStates(SqliteDatabase& database, absl::Time now, absl::Duration kept_until) {
  absl::StatusOr<std::optional<StateCounts>> counts = CountKnownStates(database);
  if (counts.ok() && !counts->has_value()) {
    RETURN_IF_ERROR(FailUnknownStates(database, now, kept_until));
    counts = CountKnownStates(database);
  }
  if (!counts.ok()) return counts.status();
  if (!counts->has_value()) return absl::DataLossError("the job store's database is damaged: it has unknown states");
  return **counts;
}

absl::Status VisitQueue(SqliteDatabase& database, absl::FunctionRef<void(const QueueEntry&)> visit) {
  ASSIGN_OR_RETURN(
      SqliteStatement select,
      database.Prepare(
          "SELECT " TASK_COLUMNS ", " JOB_COLUMNS
          " FROM tasks t INDEXED BY tasks_queued LEFT JOIN jobs j ON j.number = t.job WHERE t.state = 0 ORDER BY "
          "t.number"));
  QueueEntry entry;  // shared by all rows: a million of them reuse its strings' memory
  while (true) {
    ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return absl::OkStatus();
    entry.task = TaskFrom(select);
    entry.request = select.IsNull(kTaskColumns) ? GoneError() : JobFrom(select, entry.job);
    visit(entry);
  }
}

absl::StatusOr<uint64_t> NextNumber(SqliteDatabase& database) {
  const absl::StatusOr<std::optional<int64_t>> last =
      OneNumber(database,
                "SELECT MAX((SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = 'tasks'), "
                "(SELECT COALESCE(MAX(number), 0) FROM tasks))");
  if (!last.ok()) return last.status();
  return static_cast<uint64_t>(last->value_or(0)) + 1;
}

absl::StatusOr<absl::Time> NewestTime(SqliteDatabase& database) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> newest,
                   OneNumber(database,
                             "SELECT MAX(at) FROM (SELECT MAX(created) AS at FROM jobs UNION ALL SELECT "
                             "MAX(started) FROM tasks UNION ALL SELECT MAX(ended) FROM tasks)"));
  return TimeOf(newest).value_or(absl::InfinitePast());
}

absl::StatusOr<absl::Duration> ReadRunningTime(SqliteDatabase& database) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> running, OneNumber(database, "SELECT microseconds FROM running_time"));
  // If the row is missing, the result is at most too short.
  return absl::Microseconds(std::max<int64_t>(running.value_or(0), 0));
}

absl::Status KeepRunningTime(SqliteDatabase& database, absl::Duration running) {
  ASSIGN_OR_RETURN(SqliteStatement update, database.Prepare("UPDATE running_time SET microseconds = ?1 WHERE "
                                                            "microseconds < ?1"));
  return update.Bind(1, absl::ToInt64Microseconds(running)).Run();
}

absl::StatusOr<RecordIds> ReadRecordIds(SqliteDatabase& database) {
  ASSIGN_OR_RETURN(SqliteStatement select, database.Prepare("SELECT secret, first_hidden FROM record_ids"));
  ASSIGN_OR_RETURN(const bool row, select.Step());
  if (!row || select.Bytes(0).size() != kRecordIdSecretBytes || select.Int(1) < 1) {
    return absl::DataLossError("the job store's database is damaged: the secret of its ids is missing");
  }
  return RecordIds(std::string(select.Bytes(0)), static_cast<uint64_t>(select.Int(1)));
}

}  // namespace tessera::server
