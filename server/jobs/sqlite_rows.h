// The rows of a job store in SQLite: what job_rows.h leaves to the database. The caller provides the transaction. A
// refused move (FAILED_PRECONDITION, NOT_FOUND) has changed nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/jobs/job_record.h"
#include "server/jobs/job_rows.h"
#include "server/jobs/record_ids.h"
#include "server/jobs/sqlite.h"

namespace tessera::server {

absl::Status InsertJob(SqliteDatabase& database, const JobRow& job);

absl::StatusOr<TaskRow> FindTask(SqliteDatabase& database, uint64_t task);

// NOT_FOUND, or FAILED_PRECONDITION unless the task runs under that attempt.
absl::StatusOr<TaskRow> FindAttempt(SqliteDatabase& database, const TaskAttempt& attempt);

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

// Visits every queued task in the order of its number.
absl::Status VisitQueue(SqliteDatabase& database, absl::FunctionRef<void(const QueueEntry&)> visit);

// Returns the number after the last one ever used.
absl::StatusOr<uint64_t> NextNumber(SqliteDatabase& database);
// Returns the stored time that servers have worked on the store.
absl::StatusOr<absl::Duration> ReadRunningTime(SqliteDatabase& database);
absl::Status KeepRunningTime(SqliteDatabase& database, absl::Duration running);

// DATA_LOSS: the secret of the ids is missing.
absl::StatusOr<RecordIds> ReadRecordIds(SqliteDatabase& database);

}  // namespace tessera::server
