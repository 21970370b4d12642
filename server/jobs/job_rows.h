// The rows of the SQLite job store: the SQL of each change, and how a job is read. The caller provides the transaction.
// A refused move (FAILED_PRECONDITION, NOT_FOUND) has changed nothing.
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
#include "server/jobs/job_record.h"
#include "server/jobs/record_ids.h"
#include "server/jobs/sqlite.h"

namespace tessera::server {

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

absl::Status InsertJob(SqliteDatabase& database, const JobRow& job);

absl::Status InsertIdempotencyKey(SqliteDatabase& database, const JobRow& job, const std::string& key_hash,
                                  const std::string& digest);
struct KnownKey {
  uint64_t job = 0;
  std::string digest;
};
absl::StatusOr<std::optional<KnownKey>> FindIdempotencyKey(SqliteDatabase& database, const std::string& tenant,
                                                           const std::string& key_hash);

absl::StatusOr<TaskRow> FindTask(SqliteDatabase& database, uint64_t task);

// NOT_FOUND, or FAILED_PRECONDITION unless the task runs under that attempt.
absl::StatusOr<TaskRow> FindAttempt(SqliteDatabase& database, const TaskAttempt& attempt);

struct TaskMove {
  TaskState to = TaskState::kQueued;
  absl::Time now;                             // calendar time
  std::optional<Blame> blame = std::nullopt;  // new value; absent: unchanged
  absl::Status error;                         // for a move to failed or quarantined
  std::string image;                          // for a move to done, in the form of stored_job.h
  absl::Duration running;                     // running time of the store (store_time.h)
  absl::Duration retention;                   // from now on, for a job that this move ends
};

// Checks and makes the move, counts it in `counts`, and updates the job's state, with the end of its retention if this
// was its last task.
absl::Status MoveTask(SqliteDatabase& database, const TaskRow& task, const TaskMove& move, StateCounts& counts);

// The bytes of a done task's image until they are moved to a file.
struct PictureRow {
  TaskAttempt attempt;
  std::string bytes;
};
absl::Status InsertPicture(SqliteDatabase& database, const TaskAttempt& attempt, absl::string_view bytes);
// Returns the size of the picture; nullopt if there is none.
absl::StatusOr<std::optional<uint64_t>> FindPicture(SqliteDatabase& database, uint64_t task);
absl::StatusOr<std::optional<std::string>> ReadPicture(SqliteDatabase& database, uint64_t task, uint64_t offset,
                                                       size_t count);
absl::StatusOr<std::vector<PictureRow>> ListPictures(SqliteDatabase& database, int64_t limit);
// Returns false if the picture was already gone.
absl::StatusOr<bool> DeletePicture(SqliteDatabase& database, uint64_t task);

// Returns the stored bytes of a task's job; DATA_LOSS if they differ from what was written.
absl::StatusOr<std::string> ReadRequest(SqliteDatabase& database, uint64_t job);

// Reads a job and its tasks in one snapshot. A damaged row appears as a failed task.
absl::StatusOr<JobRecord> ReadJob(SqliteDatabase& database, const RecordIds& ids, uint64_t job);

// NOT_FOUND also for a job of another tenant and for a wrong token.
absl::StatusOr<JobRecord> ReadJob(SqliteDatabase& database, const RecordIds& ids, const std::string& tenant,
                                  const std::string& id);

// Returns the numbers of a tenant's jobs below `before`, newest first; of all states if `state` is absent. Reads no
// other rows.
absl::StatusOr<std::vector<uint64_t>> ListJobs(SqliteDatabase& database, const std::string& tenant,
                                               std::optional<JobState> state, uint64_t before, int32_t limit);

// Returns ended jobs whose retention ended by that running time.
absl::StatusOr<std::vector<uint64_t>> ListExpired(SqliteDatabase& database, absl::Duration running, int64_t limit);

// Returns ended jobs in the order in which their retention ends, which is the order of their ends.
absl::StatusOr<std::vector<uint64_t>> ListEnded(SqliteDatabase& database, int64_t limit);

// Removes the job with its tasks and its key, and updates the counts. The caller removes its files.
absl::Status DeleteJob(SqliteDatabase& database, const JobRecord& job, StateCounts& counts);

// Queues all running tasks again; returns their number.
absl::StatusOr<int64_t> QueueRunning(SqliteDatabase& database);

// FailDamagedImages turns finished tasks whose image row cannot be read into failed ones, as ReadJob shows them, so
// that lists by state agree with it. Their jobs are kept until `kept_until`. Rows that a newer program wrote are not
// changed.
struct FinishedImages {
  int64_t damaged = 0;  // tasks
  int64_t bytes = 0;    // size of the files of the other tasks
};
absl::StatusOr<FinishedImages> FailDamagedImages(SqliteDatabase& database, absl::Duration kept_until);

// First turns tasks in unknown states into failed ones that end `now`; their jobs are kept until `kept_until`.
absl::StatusOr<StateCounts> CountStates(SqliteDatabase& database, absl::Time now, absl::Duration kept_until);

struct QueueEntry {
  TaskRow task;
  JobRow job;
  absl::Status request;  // DATA_LOSS: the job is missing, or JobRow::request differs from what was written
};

// Visits every queued task in the order of its number.
absl::Status VisitQueue(SqliteDatabase& database, absl::FunctionRef<void(const QueueEntry&)> visit);

// Returns the number after the last one ever used.
absl::StatusOr<uint64_t> NextNumber(SqliteDatabase& database);
// Returns the newest time in any record; InfinitePast without records.
absl::StatusOr<absl::Time> NewestTime(SqliteDatabase& database);

// Returns the stored time that servers have worked on the store.
absl::StatusOr<absl::Duration> ReadRunningTime(SqliteDatabase& database);
absl::Status KeepRunningTime(SqliteDatabase& database, absl::Duration running);

// DATA_LOSS: the secret of the ids is missing.
absl::StatusOr<RecordIds> ReadRecordIds(SqliteDatabase& database);

}  // namespace tessera::server
