// The rows of a job store: the statements that SQLite and PostgreSQL share, and how their rows become records. What
// differs between them is in sqlite_rows.h and postgres_rows.h. The caller provides the transaction. A refused move
// (FAILED_PRECONDITION, NOT_FOUND) has changed nothing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/jobs/job_record.h"
#include "server/jobs/record_ids.h"
#include "server/jobs/sql.h"

namespace tessera::server {

using ServerId = int64_t;  // of a process that shares the queue

struct JobRow {
  uint64_t number = 0;
  std::string token;
  std::string tenant;
  int32_t tasks = 0;
  absl::Time created = absl::InfinitePast();
  std::optional<absl::Time> deadline;
  std::string request;  // in the form of stored_job.h
};

struct TaskRow {
  uint64_t number = 0;
  uint64_t job = 0;
  TaskState state = TaskState::kQueued;  // kFailed for an unknown number
  int32_t attempt = 0;
  Blame blame;
};

// By how much a change alters the number of tasks in each state.
using StateCounts = std::array<int64_t, kTaskStates>;

struct TaskMove {
  TaskState to = TaskState::kQueued;
  absl::Time now;                             // calendar time
  std::optional<Blame> blame = std::nullopt;  // new value; absent: unchanged
  absl::Status error;                         // for a move to failed or quarantined
  std::string image;                          // for a move to done, in the form of stored_job.h
  absl::Duration running;                     // running time of the store (store_time.h)
  absl::Duration retention;                   // from now on, for a job that this move ends
};

struct QueueEntry {
  TaskRow task;
  JobRow job;
  absl::Status request;  // DATA_LOSS: the job is missing, or JobRow::request differs from what was written
};

// A row of the task table t has the task's number, job, state, attempt, deaths and isolation; a row of both tables
// continues with these columns of the job table j.
#define TESSERA_JOB_COLUMNS "j.token, j.tenant, j.created, j.deadline, j.request, j.checksum"
inline constexpr int kTaskColumns = 6;
TaskRow TaskFrom(const SqlRow& row);
// The columns of an error, from `column` on; OK for NULL.
#define TESSERA_ERROR_COLUMNS "t.error_code, t.error, t.error_field"
absl::Status ErrorFrom(const SqlRow& row, int column);

// The columns of ReadJobs after those of the task and the job, and before the owner.
#define TESSERA_RECORD_COLUMNS "j.kept_until, t.started, t.ended, t.image, " TESSERA_ERROR_COLUMNS

std::optional<absl::Time> TimeOf(std::optional<int64_t> microseconds);

// Returns the only column of the statement's rows.
absl::StatusOr<std::vector<uint64_t>> Numbers(SqlDatabase& database, const char* sql,
                                              absl::Span<const SqlValue> values = {});

// Inserts the row of the job, without its tasks, with `sql`, which continues TESSERA_INSERT_JOB. Returns false if it
// inserts nothing.
#define TESSERA_INSERT_JOB                                                                                   \
  "INSERT INTO jobs(number, token, tenant, tasks, created, deadline, request, checksum) VALUES($1::bigint, " \
  "$2::text, $3::text, $4::integer, $5::bigint, $6::bigint, $7::bytea, $8::bytea)"
absl::StatusOr<bool> InsertJobRow(SqlDatabase& database, const char* sql, const JobRow& job);

// Returns false if the key is known.
absl::StatusOr<bool> InsertIdempotencyKey(SqlDatabase& database, const JobRow& job, const std::string& key_hash,
                                          const std::string& digest);
struct KnownKey {
  uint64_t job = 0;
  std::string digest;
};
absl::StatusOr<std::optional<KnownKey>> FindIdempotencyKey(SqlDatabase& database, const std::string& tenant,
                                                           const std::string& key_hash);

// FAILED_PRECONDITION unless the task runs under that attempt, and the caller has claimed it.
absl::Status CheckAttempt(const TaskRow& task, const TaskAttempt& attempt, bool is_owner = true);

// Checks the move and makes it with `sql`, whose parameters are the task's number, the new state, attempt, deaths,
// isolation, start, end, error code, error, error field and image, and `more`.
absl::Status UpdateTask(SqlDatabase& database, const char* sql, const TaskRow& task, const TaskMove& move,
                        absl::Span<const SqlValue> more = {});

// Returns the stored bytes of a task's job; DATA_LOSS if they differ from what was written.
absl::StatusOr<std::string> ReadRequest(SqlDatabase& database, uint64_t job);

// Reads the jobs that `sql` returns, a row for each task, in one snapshot. A damaged row appears as a failed task.
// `server`: the server that reads a shared store, whose rows end with the owner of the task.
absl::StatusOr<std::vector<JobRecord>> ReadJobs(SqlDatabase& database, const char* sql,
                                                absl::Span<const SqlValue> values, const RecordIds& ids,
                                                std::optional<ServerId> server = std::nullopt);
// Returns the only job. NOT_FOUND if there is none, and also for a job of another tenant and for a wrong token.
absl::StatusOr<JobRecord> OnlyJob(std::vector<JobRecord> jobs, const std::string& tenant, const std::string& id);

// Visits the queued tasks that `sql` returns, a row of both tables for each.
absl::Status VisitQueue(SqlDatabase& database, const char* sql, absl::Span<const SqlValue> values,
                        absl::FunctionRef<void(const QueueEntry&)> visit);

// Returns the newest time in any record; InfinitePast without records.
absl::StatusOr<absl::Time> NewestTime(SqlDatabase& database);

}  // namespace tessera::server
