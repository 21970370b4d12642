#include "server/jobs/postgres_rows.h"

#include <utility>

#include "base/macros/status_macros.h"
#include "server/api/job.h"
#include "server/jobs/postgres_schema.h"
#include "server/jobs/stored_job.h"
#include "server/jobs/stored_task.h"

namespace tessera::server {
namespace {

#define POSTGRES_TASK_COLUMNS "t.number, t.job, t.state, t.attempt, t.deaths, t.isolated"

// Running time until which a job that ends now is kept. Another server may have measured more than is stored, but by
// less than the length of a lease.
#define KEPT_UNTIL                                                                                             \
  "GREATEST($1::bigint, (SELECT running FROM store)) + $2::bigint + CASE WHEN EXISTS(SELECT 1 FROM servers o " \
  "WHERE o.id <> $3::bigint AND o.expires > clock_timestamp()) THEN $4::bigint ELSE 0 END"
std::vector<SqlValue> KeptUntilValues(const SharingServer& server, const TaskMove& move) {
  return {absl::ToInt64Microseconds(move.running), absl::ToInt64Microseconds(move.retention), server.id,
          absl::ToInt64Microseconds(server.lease)};
}

// Updates the jobs' states from their tasks by the rules of StateOf; for jobs that `move` ends, the retention starts.
absl::Status UpdateJobStates(PostgresConnection& database, absl::Span<const uint64_t> jobs, const SharingServer& server,
                             const TaskMove& move) {
  std::vector<SqlValue> values = KeptUntilValues(server, move);
  values.push_back(SqlValue::Numbers(jobs));
  return database.Run(
      "UPDATE jobs j SET state = s.state, kept_until = CASE WHEN s.state >= 2 THEN "
      "COALESCE(j.kept_until, " KEPT_UNTIL
      ") ELSE j.kept_until END FROM (SELECT t.job, CASE WHEN bool_or(t.state = 1) THEN 1 WHEN bool_or(t.state = 0) "
      "THEN CASE WHEN bool_and(t.state = 0) THEN 0 ELSE 1 END WHEN bool_or(t.state IN (3, 5)) THEN 3 WHEN "
      "bool_or(t.state = 4) THEN 4 ELSE 2 END AS state FROM tasks t WHERE t.job = ANY($5::bigint[]) GROUP BY "
      "t.job) s "
      "WHERE j.number = s.job",
      values);
}

}  // namespace

absl::StatusOr<uint64_t> TakeNumber(PostgresConnection& database) {
  ASSIGN_OR_RETURN(const PostgresRows row, database.Query("SELECT nextval('job_numbers')"));
  return static_cast<uint64_t>(row.Int(0, 0));
}

absl::StatusOr<bool> InsertJob(PostgresConnection& database, const JobRow& job) {
  ASSIGN_OR_RETURN(const bool is_new,
                   InsertJobRow(database, TESSERA_INSERT_JOB " ON CONFLICT (token) DO NOTHING", job));
  if (!is_new) return false;
  const int64_t number = static_cast<int64_t>(job.number);
  RETURN_IF_ERROR(database.Run(
      "INSERT INTO tasks(number, job) SELECT n, $1::bigint FROM generate_series($1::bigint, $2::bigint) AS n",
      {number, number + job.tasks - 1}));
  return true;
}

absl::Status LockJobs(PostgresConnection& database, absl::Span<const uint64_t> tasks) {
  return database.Run(
      "SELECT number FROM jobs WHERE number IN (SELECT job FROM tasks WHERE number = ANY($1::bigint[])) ORDER BY "
      "number "
      "FOR UPDATE",
      {SqlValue::Numbers(tasks)});
}

absl::StatusOr<OwnedTask> LockTask(PostgresConnection& database, uint64_t task) {
  RETURN_IF_ERROR(LockJobs(database, {task}));
  return FindOwnedTask(database, task);
}

absl::StatusOr<OwnedTask> FindOwnedTask(PostgresConnection& database, uint64_t task) {
  absl::StatusOr<OwnedTask> found = absl::NotFoundError("there is no such task");
  RETURN_IF_ERROR(database.Visit("SELECT " POSTGRES_TASK_COLUMNS ", t.owner, t.image, " TESSERA_ERROR_COLUMNS
                                 " FROM tasks t WHERE t.number = $1::bigint",
                                 {static_cast<int64_t>(task)}, [&](const SqlRow& row) {
                                   found = OwnedTask{.row = TaskFrom(row),
                                                     .owner = row.OptionalInt(kTaskColumns),
                                                     .error = ErrorFrom(row, kTaskColumns + 2),
                                                     .image = std::string(row.Bytes(kTaskColumns + 1))};
                                 }));
  return found;
}

absl::Status CheckAttempt(const OwnedTask& task, const TaskAttempt& attempt, ServerId server) {
  return CheckAttempt(task.row, attempt, task.owner == server);
}

absl::Status MoveTask(PostgresConnection& database, const SharingServer& server, const TaskRow& task,
                      const TaskMove& move, const TaskOwner& owner) {
  RETURN_IF_ERROR(UpdateTask(
      database,
      "UPDATE tasks SET state = $2::smallint, attempt = $3::integer, deaths = $4::integer, isolated = $5::integer <> "
      "0, started = COALESCE($6::bigint, started), ended = $7::bigint, error_code = $8::integer, error = $9::bytea, "
      "error_field = $10::text, image = $11::bytea, owner = COALESCE($12::bigint, owner), bytes = $13::bigint WHERE "
      "number = $1::bigint",
      task, move, {owner.owner, move.to == TaskState::kDone ? SqlValue(owner.bytes) : SqlValue::Null()}));
  return UpdateJobStates(database, {task.job}, server, move);
}

absl::StatusOr<std::vector<JobRecord>> ReadJobs(PostgresConnection& database, const RecordIds& ids, ServerId server,
                                                absl::Span<const uint64_t> numbers) {
  if (numbers.empty()) return std::vector<JobRecord>();
  return ReadJobs(database,
                  "SELECT " POSTGRES_TASK_COLUMNS ", " TESSERA_JOB_COLUMNS ", " TESSERA_RECORD_COLUMNS
                  ", t.owner FROM jobs j JOIN tasks t ON t.job = j.number WHERE j.number = ANY($1::bigint[]) ORDER BY "
                  "j.number DESC, t.number",
                  {SqlValue::Numbers(numbers)}, ids, server);
}

absl::StatusOr<JobRecord> ReadJob(PostgresConnection& database, const RecordIds& ids, ServerId server,
                                  const std::string& tenant, const std::string& id) {
  ASSIGN_OR_RETURN(const uint64_t number, ids.JobNumber(id));
  ASSIGN_OR_RETURN(std::vector<JobRecord> jobs, ReadJobs(database, ids, server, {number}));
  return OnlyJob(std::move(jobs), tenant, id);
}

absl::StatusOr<std::vector<uint64_t>> JobsOf(PostgresConnection& database, absl::Span<const uint64_t> tasks) {
  return Numbers(database, "SELECT DISTINCT job FROM tasks WHERE number = ANY($1::bigint[])",
                 {SqlValue::Numbers(tasks)});
}

absl::StatusOr<std::vector<uint64_t>> KnownTasks(PostgresConnection& database, absl::Span<const uint64_t> tasks) {
  return Numbers(database, "SELECT number FROM tasks WHERE number = ANY($1::bigint[])", {SqlValue::Numbers(tasks)});
}

absl::StatusOr<std::vector<uint64_t>> ListJobs(PostgresConnection& database, const std::string& tenant,
                                               std::optional<JobState> state, uint64_t before, int32_t limit) {
#define JOBS_OF_TENANT "SELECT number FROM jobs WHERE tenant = $1::text AND number < $2::bigint"
  std::vector<SqlValue> values = {SqlValue::Text(tenant), static_cast<int64_t>(before), limit};
  if (!state.has_value()) return Numbers(database, JOBS_OF_TENANT " ORDER BY number DESC LIMIT $3::bigint", values);
  values.push_back(static_cast<int64_t>(*state));
  return Numbers(database, JOBS_OF_TENANT " AND state = $4::smallint ORDER BY number DESC LIMIT $3::bigint", values);
}

absl::StatusOr<std::vector<OpenTask>> ListOpen(PostgresConnection& database, ServerId server) {
  std::vector<OpenTask> open;
  RETURN_IF_ERROR(database.Visit(
      "SELECT number, state, attempt, owner FROM tasks WHERE state IN (0, 1)", {}, [&](const SqlRow& row) {
        const auto state = static_cast<TaskState>(row.Int(1));
        open.push_back({.task = static_cast<uint64_t>(row.Int(0)),
                        .state = state,
                        .attempt = static_cast<int32_t>(row.Int(2)),
                        .elsewhere = state == TaskState::kRunning && row.OptionalInt(3) != server});
      }));
  return open;
}

absl::StatusOr<std::vector<uint64_t>> LockExpired(PostgresConnection& database, absl::Duration running, int64_t limit) {
  return Numbers(database,
                 "SELECT number FROM jobs WHERE kept_until <= $1::bigint ORDER BY kept_until LIMIT $2::bigint FOR "
                 "UPDATE SKIP LOCKED",
                 {absl::ToInt64Microseconds(running), limit});
}

absl::StatusOr<std::vector<uint64_t>> LockEnded(PostgresConnection& database, int64_t limit) {
  return Numbers(database,
                 "SELECT number FROM jobs WHERE kept_until IS NOT NULL ORDER BY kept_until LIMIT $1::bigint FOR "
                 "UPDATE SKIP LOCKED",
                 {limit});
}

absl::Status DeleteJobs(PostgresConnection& database, absl::Span<const uint64_t> jobs) {
  return database.Run("DELETE FROM jobs WHERE number = ANY($1::bigint[])", {SqlValue::Numbers(jobs)});
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
  std::vector<StoredTask> queue;
  RETURN_IF_ERROR(VisitQueue(database,
                             "SELECT " POSTGRES_TASK_COLUMNS ", " TESSERA_JOB_COLUMNS
                             " FROM tasks t JOIN jobs j ON j.number = t.job WHERE t.state = 0 AND t.number > "
                             "$1::bigint ORDER BY t.number LIMIT $2::bigint",
                             {static_cast<int64_t>(after), limit}, [&](const QueueEntry& entry) {
                               StoredTask& stored = queue.emplace_back(StoredTask{.row = entry});
                               if (entry.request.ok()) {
                                 stored.row.request = ParseStoredJob(entry.job.request, stored.job);
                               }
                             }));
  return queue;
}

absl::Status RenewLease(PostgresConnection& database, ServerId server, const std::string& name, absl::Duration lease) {
  return database.Run(
      "INSERT INTO servers(id, name, expires) VALUES($1::bigint, $2::text, clock_timestamp() + $3::bigint * interval "
      "'1 microsecond') ON CONFLICT (id) DO UPDATE SET expires = excluded.expires",
      {server, SqlValue::Text(name), absl::ToInt64Microseconds(lease)});
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
  const absl::StatusOr<std::vector<uint64_t>> found = Numbers(
      database,
      "SELECT id FROM servers WHERE id <> $1::bigint AND expires < clock_timestamp() AND (expires = '-infinity' OR "
      "pg_postmaster_start_time() + $2::bigint * interval '1 microsecond' < clock_timestamp()) ORDER BY id FOR UPDATE "
      "SKIP LOCKED",
      {server.id, absl::ToInt64Microseconds(server.lease)});
  if (!found.ok()) return found.status();
  if (found->empty()) return taken;
  const SqlValue servers = SqlValue::Numbers(*found);
  ASSIGN_OR_RETURN(taken.jobs, Numbers(database,
                                       "SELECT number FROM jobs WHERE number IN (SELECT job FROM tasks WHERE state = 1 "
                                       "AND owner = ANY($1::bigint[])) ORDER BY number FOR UPDATE",
                                       {servers}));
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

absl::Status KeepOthersJobs(PostgresConnection& database, const SharingServer& server, const TaskMove& move) {
  return database.Run("UPDATE jobs SET expires = NULL, kept_until = " KEPT_UNTIL
                      " WHERE kept_until IS NULL AND state >= 2",
                      KeptUntilValues(server, move));
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
