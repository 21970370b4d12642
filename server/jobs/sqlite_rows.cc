#include "server/jobs/sqlite_rows.h"

#include <algorithm>
#include <utility>

#include "base/macros/status_macros.h"
#include "server/api/job.h"
#include "server/jobs/stored_job.h"

namespace tessera::server {
namespace {

// One index serves lists with and without a state: the five lists of a tenant are each in order, and are merged.
#define JOBS_IN(state)                                                                          \
  "SELECT number FROM jobs INDEXED BY jobs_by_state WHERE tenant = $1::text AND state = " state \
  " AND number < "                                                                              \
  "$2::bigint"
constexpr char kAllJobs[] = JOBS_IN("0") " UNION ALL " JOBS_IN("1") " UNION ALL " JOBS_IN("2") " UNION ALL " JOBS_IN(
    "3") " UNION ALL " JOBS_IN("4") " ORDER BY number DESC LIMIT $3::bigint";
constexpr char kJobsInState[] = JOBS_IN("$4::smallint") " ORDER BY number DESC LIMIT $3::bigint";

#define SQLITE_TASK_COLUMNS "t.number, t.job, t.state, t.attempt, t.strikes, t.alone"
#define SQLITE_TASKS_OF_JOB "t.number >= j.number AND t.number < j.number + j.tasks AND t.job = j.number"
// Returns the only column of the only row, if there is one.
absl::StatusOr<std::optional<int64_t>> OneNumber(SqliteDatabase& database, const char* sql) {
  std::optional<int64_t> number;
  RETURN_IF_ERROR(database.Visit(sql, {}, [&](const SqlRow& row) { number = row.OptionalInt(0); }));
  return number;
}

// Updates the job's state from its tasks; an ended job is kept until `kept_until`.
absl::Status UpdateJobState(SqliteDatabase& database, uint64_t job, absl::Duration kept_until) {
  std::vector<TaskState> tasks;
  RETURN_IF_ERROR(database.Visit(
      "SELECT " SQLITE_TASK_COLUMNS " FROM jobs j JOIN tasks t ON " SQLITE_TASKS_OF_JOB " WHERE j.number = $1::bigint",
      {static_cast<int64_t>(job)}, [&](const SqlRow& row) { tasks.push_back(TaskFrom(row).state); }));
  const JobState state = StateOf(tasks);
  return database.Run(
      "UPDATE jobs SET state = $2::smallint, kept_until = COALESCE($3::bigint, kept_until) WHERE number = "
      "$1::bigint AND (state IS NOT $2::smallint OR ($3::bigint IS NOT NULL AND kept_until IS NULL))",
      {static_cast<int64_t>(job), static_cast<int64_t>(state),
       IsEnded(state) ? SqlValue(absl::ToInt64Microseconds(kept_until)) : SqlValue::Null()});
}

absl::Status UpdateJobStates(SqliteDatabase& database, const std::vector<uint64_t>& jobs, absl::Duration kept_until) {
  for (const uint64_t job : jobs) {
    RETURN_IF_ERROR(UpdateJobState(database, job, kept_until));
  }
  return absl::OkStatus();
}

#define UNKNOWN_STATE "typeof(state) <> 'integer' OR state < 0 OR state > 5"
absl::Status FailUnknownStates(SqliteDatabase& database, absl::Time now, absl::Duration kept_until) {
  ASSIGN_OR_RETURN(const std::vector<uint64_t> jobs,
                   Numbers(database, "SELECT DISTINCT job FROM tasks WHERE " UNKNOWN_STATE));
  RETURN_IF_ERROR(database.Run(
      "UPDATE tasks SET state = 3, ended = $1::bigint, error_code = 15, error = 'the stored job is damaged: its state "
      "is not known' WHERE " UNKNOWN_STATE,
      {absl::ToUnixMicros(now)}));
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
  RETURN_IF_ERROR(InsertJobRow(database, TESSERA_INSERT_JOB, job).status());
  for (int32_t index = 0; index < job.tasks; ++index) {
    const int64_t number = static_cast<int64_t>(job.number);
    RETURN_IF_ERROR(database.Run("INSERT INTO tasks(number, job, state) VALUES($1::bigint, $2::bigint, 0)",
                                 {number + index, number}));
  }
  return absl::OkStatus();
}

absl::StatusOr<TaskRow> FindTask(SqliteDatabase& database, uint64_t task) {
  absl::StatusOr<TaskRow> found = absl::NotFoundError("there is no such task");
  RETURN_IF_ERROR(database.Visit("SELECT " SQLITE_TASK_COLUMNS " FROM tasks t WHERE t.number = $1::bigint",
                                 {static_cast<int64_t>(task)}, [&](const SqlRow& row) { found = TaskFrom(row); }));
  return found;
}

absl::StatusOr<TaskRow> FindAttempt(SqliteDatabase& database, const TaskAttempt& attempt) {
  ASSIGN_OR_RETURN(const TaskRow task, FindTask(database, attempt.task));
  RETURN_IF_ERROR(CheckAttempt(task, attempt));
  return task;
}

absl::Status MoveTask(SqliteDatabase& database, const TaskRow& task, const TaskMove& move, StateCounts& counts) {
  RETURN_IF_ERROR(UpdateTask(
      database,
      "UPDATE tasks SET state = $2::smallint, attempt = $3::integer, strikes = $4::integer, alone = $5::integer, "
      "started = COALESCE($6::bigint, started), ended = $7::bigint, error_code = $8::integer, error = $9::text, "
      "error_field = $10::text, image = $11::bytea WHERE number = $1::bigint",
      task, move));
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
  ASSIGN_OR_RETURN(
      const std::vector<uint64_t> size,
      Numbers(database, "SELECT length(bytes) FROM pictures WHERE task = $1::bigint", {static_cast<int64_t>(task)}));
  return size.empty() ? std::nullopt : std::make_optional(size[0]);
}

absl::StatusOr<std::optional<std::string>> ReadPicture(SqliteDatabase& database, uint64_t task, uint64_t offset,
                                                       size_t count) {
  return database.ReadBlob("pictures", "bytes", static_cast<int64_t>(task), offset, count);
}

absl::StatusOr<std::vector<PictureRow>> ListPictures(SqliteDatabase& database, int64_t limit) {
  std::vector<PictureRow> pictures;
  RETURN_IF_ERROR(database.Visit(
      "SELECT task, attempt, bytes FROM pictures ORDER BY task LIMIT $1::bigint", {limit}, [&](const SqlRow& row) {
        pictures.push_back(
            {.attempt = {.task = static_cast<uint64_t>(row.Int(0)), .attempt = static_cast<int32_t>(row.Int(1))},
             .bytes = std::string(row.Bytes(2))});
      }));
  return pictures;
}

absl::StatusOr<bool> DeletePicture(SqliteDatabase& database, uint64_t task) {
  ASSIGN_OR_RETURN(const int64_t removed,
                   database.Update("DELETE FROM pictures WHERE task = $1::bigint", {static_cast<int64_t>(task)}));
  return removed > 0;
}

absl::StatusOr<JobRecord> ReadJob(SqliteDatabase& database, const RecordIds& ids, uint64_t job) {
  ASSIGN_OR_RETURN(std::vector<JobRecord> jobs,
                   ReadJobs(database,
                            "SELECT " SQLITE_TASK_COLUMNS ", " TESSERA_JOB_COLUMNS ", " TESSERA_RECORD_COLUMNS
                            " FROM jobs j JOIN tasks t ON " SQLITE_TASKS_OF_JOB " WHERE j.number = $1::bigint ORDER BY "
                            "t.number",
                            {static_cast<int64_t>(job)}, ids));
  if (jobs.empty()) return absl::NotFoundError("there is no such job");
  return std::move(jobs[0]);
}

absl::StatusOr<JobRecord> ReadJob(SqliteDatabase& database, const RecordIds& ids, const std::string& tenant,
                                  const std::string& id) {
  ASSIGN_OR_RETURN(const uint64_t number, ids.JobNumber(id));
  ASSIGN_OR_RETURN(JobRecord job, ReadJob(database, ids, number));
  return OnlyJob({std::move(job)}, tenant, id);
}

absl::StatusOr<std::vector<uint64_t>> ListJobs(SqliteDatabase& database, const std::string& tenant,
                                               std::optional<JobState> state, uint64_t before, int32_t limit) {
  return Numbers(database, state.has_value() ? kJobsInState : kAllJobs,
                 {SqlValue::Text(tenant), static_cast<int64_t>(before), limit,
                  static_cast<int64_t>(state.value_or(JobState::kQueued))});
}

absl::StatusOr<std::vector<uint64_t>> ListExpired(SqliteDatabase& database, absl::Duration running, int64_t limit) {
  return Numbers(database,
                 "SELECT number FROM jobs WHERE kept_until <= $1::bigint ORDER BY kept_until LIMIT $2::bigint",
                 {absl::ToInt64Microseconds(running), limit});
}

absl::StatusOr<std::vector<uint64_t>> ListEnded(SqliteDatabase& database, int64_t limit) {
  return Numbers(database, "SELECT number FROM jobs WHERE kept_until IS NOT NULL ORDER BY kept_until LIMIT $1::bigint",
                 {limit});
}

absl::Status DeleteJob(SqliteDatabase& database, const JobRecord& job, StateCounts& counts) {
  const uint64_t number = job.tasks[0].id - static_cast<uint64_t>(job.tasks[0].index);
  for (const TaskRecord& task : job.tasks) {
    ASSIGN_OR_RETURN(const TaskRow row, FindTask(database, task.id));
    --counts[static_cast<size_t>(row.state)];
    RETURN_IF_ERROR(database.Run("DELETE FROM tasks WHERE number = $1::bigint", {static_cast<int64_t>(task.id)}));
    RETURN_IF_ERROR(DeletePicture(database, task.id).status());
  }
  for (const char* sql :
       {"DELETE FROM idempotency WHERE job = $1::bigint", "DELETE FROM jobs WHERE number = $1::bigint"}) {
    RETURN_IF_ERROR(database.Run(sql, {static_cast<int64_t>(number)}));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> QueueRunning(SqliteDatabase& database) {
  ASSIGN_OR_RETURN(const std::vector<uint64_t> jobs,
                   Numbers(database, "SELECT DISTINCT job FROM tasks INDEXED BY tasks_running WHERE state = 1"));
  RETURN_IF_ERROR(database.Execute("UPDATE tasks SET state = 0 WHERE state = 1"));
  const int64_t tasks = database.Changes();
  // None of these jobs has ended.
  RETURN_IF_ERROR(UpdateJobStates(database, jobs, absl::InfiniteDuration()));
  return tasks;
}

absl::StatusOr<FinishedImages> FailDamagedImages(SqliteDatabase& database, absl::Duration kept_until) {
  FinishedImages finished;
  std::vector<std::pair<int64_t, absl::Status>> damaged;
  std::vector<uint64_t> jobs;
  RETURN_IF_ERROR(database.Visit("SELECT number, job, image FROM tasks WHERE state = 2", {}, [&](const SqlRow& row) {
    const absl::StatusOr<StoredImage> image = ParseStoredImage(row.Bytes(2));
    if (image.ok()) finished.bytes += static_cast<int64_t>(image->bytes);
    if (!absl::IsDataLoss(image.status())) return;
    damaged.emplace_back(row.Int(0), image.status());
    jobs.push_back(static_cast<uint64_t>(row.Int(1)));
  }));
  for (const auto& [task, error] : damaged) {
    RETURN_IF_ERROR(
        database.Run("UPDATE tasks SET state = 3, error_code = $2::integer, error = $3::text, image = NULL "
                     "WHERE number = $1::bigint",
                     {task, static_cast<int64_t>(error.code()), SqlValue::Text(error.message())}));
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
  if (!counts->has_value()) return absl::DataLossError("the job store's database is damaged: states are not known");
  return **counts;
}

absl::Status VisitQueue(SqliteDatabase& database, absl::FunctionRef<void(const QueueEntry&)> visit) {
  return VisitQueue(database,
                    "SELECT " SQLITE_TASK_COLUMNS ", " TESSERA_JOB_COLUMNS
                    " FROM tasks t INDEXED BY tasks_queued LEFT JOIN jobs j ON j.number = t.job WHERE t.state = 0 "
                    "ORDER BY t.number",
                    {}, visit);
}

absl::StatusOr<uint64_t> NextNumber(SqliteDatabase& database) {
  const absl::StatusOr<std::optional<int64_t>> last =
      OneNumber(database,
                "SELECT MAX((SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = 'tasks'), "
                "(SELECT COALESCE(MAX(number), 0) FROM tasks))");
  if (!last.ok()) return last.status();
  return static_cast<uint64_t>(last->value_or(0)) + 1;
}

absl::StatusOr<absl::Duration> ReadRunningTime(SqliteDatabase& database) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> running, OneNumber(database, "SELECT microseconds FROM running_time"));
  // If the row is missing, the result is at most too short.
  return absl::Microseconds(std::max<int64_t>(running.value_or(0), 0));
}

absl::Status KeepRunningTime(SqliteDatabase& database, absl::Duration running) {
  return database.Run("UPDATE running_time SET microseconds = $1::bigint WHERE microseconds < $1::bigint",
                      {absl::ToInt64Microseconds(running)});
}

absl::StatusOr<RecordIds> ReadRecordIds(SqliteDatabase& database) {
  ASSIGN_OR_RETURN(SqliteStatement select, database.Prepare("SELECT secret, first_hidden FROM record_ids"));
  ASSIGN_OR_RETURN(const bool row, select.Step());
  if (!row || select.Bytes(0).size() != kRecordIdSecretBytes || select.Int(1) < 1) {
    return absl::DataLossError("the job store's database is damaged: the secret of its ids is gone");
  }
  return RecordIds(std::string(select.Bytes(0)), static_cast<uint64_t>(select.Int(1)));
}

}  // namespace tessera::server
