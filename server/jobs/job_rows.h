// The rows of the job store as SQL: what one change does to them, and how a job is read. Used inside a transaction of
// the caller. A refused move (FAILED_PRECONDITION, NOT_FOUND) has changed nothing.
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
  std::string request;  // bytes of stored_job.h
};

struct TaskRow {
  uint64_t number = 0;
  uint64_t job = 0;
  TaskState state = TaskState::kQueued;  // kFailed for a number that is no state
  int32_t attempt = 0;
  Blame blame;
};

// What a change adds to the number of tasks in each state.
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
  absl::Time now;                             // by the calendar
  std::optional<Blame> blame = std::nullopt;  // as it is to be; absent: as it was
  absl::Status error;                         // of a move to failed or quarantined
  std::string image;                          // bytes of stored_job.h, of a move to done
  absl::Duration running;                     // of the store (store_time.h)
  absl::Duration retention;                   // from then on, of a job that has ended by the move
};

// Checks the move, makes it, counts it in `counts`, and keeps the job's own state, with the end of its retention when
// that was its last task.
absl::Status MoveTask(SqliteDatabase& database, const TaskRow& task, const TaskMove& move, StateCounts& counts);

// The bytes of a done task's image, until they are in a file of their own.
struct PictureRow {
  TaskAttempt attempt;
  std::string bytes;
};
absl::Status InsertPicture(SqliteDatabase& database, const TaskAttempt& attempt, absl::string_view bytes);
// Its size; nothing where there is none.
absl::StatusOr<std::optional<uint64_t>> FindPicture(SqliteDatabase& database, uint64_t task);
absl::StatusOr<std::optional<std::string>> ReadPicture(SqliteDatabase& database, uint64_t task, uint64_t offset,
                                                       size_t count);
absl::StatusOr<std::vector<PictureRow>> ListPictures(SqliteDatabase& database, int64_t limit);
// False: it was not there any more.
absl::StatusOr<bool> DeletePicture(SqliteDatabase& database, uint64_t task);

// The stored bytes of a task's job; DATA_LOSS if they are not those that were written.
absl::StatusOr<std::string> ReadRequest(SqliteDatabase& database, uint64_t job);

// Job and tasks as they are in one snapshot. A damaged row is shown as a failed one.
absl::StatusOr<JobRecord> ReadJob(SqliteDatabase& database, const RecordIds& ids, uint64_t job);

// NOT_FOUND also for a job of another tenant, and for a wrong token.
absl::StatusOr<JobRecord> ReadJob(SqliteDatabase& database, const RecordIds& ids, const std::string& tenant,
                                  const std::string& id);

// Numbers of a tenant's jobs below `before`, newest first; without a state those of all. Visits no others.
absl::StatusOr<std::vector<uint64_t>> ListJobs(SqliteDatabase& database, const std::string& tenant,
                                               std::optional<JobState> state, uint64_t before, int32_t limit);

// Ended jobs whose retention ended by that running time.
absl::StatusOr<std::vector<uint64_t>> ListExpired(SqliteDatabase& database, absl::Duration running, int64_t limit);

// Ended jobs in the order in which their retention ends, which is that of their ends.
absl::StatusOr<std::vector<uint64_t>> ListEnded(SqliteDatabase& database, int64_t limit);

// Removes the job with its tasks and its key; counts them. Its files are the caller's.
absl::Status DeleteJob(SqliteDatabase& database, const JobRecord& job, StateCounts& counts);

// Queues again everything that runs; the number of tasks.
absl::StatusOr<int64_t> QueueRunning(SqliteDatabase& database);

// Makes finished tasks whose image's row cannot be read failed ones, as ReadJob shows them, so that lists of a state
// agree with it. Their jobs are kept until `kept_until`. What a newer program wrote stays as it
// is.
struct FinishedImages {
  int64_t damaged = 0;  // tasks
  int64_t bytes = 0;    // of the files of the others
};
absl::StatusOr<FinishedImages> FailDamagedImages(SqliteDatabase& database, absl::Duration kept_until);

// Makes states that are no states failed ones first, which end `now`; their jobs are kept until `kept_until`.
absl::StatusOr<StateCounts> CountStates(SqliteDatabase& database, absl::Time now, absl::Duration kept_until);

struct QueueEntry {
  TaskRow task;
  JobRow job;
  absl::Status request;  // DATA_LOSS: the job is gone, or JobRow::request is not what was written
};

// Every queued task by number.
absl::Status VisitQueue(SqliteDatabase& database, absl::FunctionRef<void(const QueueEntry&)> visit);

// The number after the last one ever used.
absl::StatusOr<uint64_t> NextNumber(SqliteDatabase& database);
// The newest of all times in the records; in the past where there are none.
absl::StatusOr<absl::Time> NewestTime(SqliteDatabase& database);

// What was kept last of the time that servers have worked on the store.
absl::StatusOr<absl::Duration> ReadRunningTime(SqliteDatabase& database);
absl::Status KeepRunningTime(SqliteDatabase& database, absl::Duration running);

// DATA_LOSS: what the ids are made with is gone.
absl::StatusOr<RecordIds> ReadRecordIds(SqliteDatabase& database);

}  // namespace tessera::server
