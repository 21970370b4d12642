// The rows of a job store in PostgreSQL as SQL, as job_rows.h has them for SQLite: used inside a transaction of the
// caller, whose isolation is READ COMMITTED.
//
// Whoever moves a task holds the lock of its job's row, so the moves of one job follow each other and the job's state
// is always that of its tasks. Several jobs are locked in the order of their numbers, and the row of a server, where it
// is wanted, before any of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/jobs/job_rows.h"
#include "server/jobs/job_store.h"
#include "server/jobs/postgres.h"
#include "server/jobs/queue_reader.h"
#include "server/jobs/record_ids.h"

namespace tessera::server {

using ServerId = int64_t;  // of a process that shares the queue

struct OwnedTask {
  TaskRow row;
  std::optional<ServerId> owner;  // who claimed it last
  // Of an ended one.
  absl::Status error;
  std::string image;  // bytes of stored_job.h
};

// The number of the next job.
absl::StatusOr<uint64_t> TakeNumber(PostgresConnection& database);
// False: a job with this token is there, which this process has submitted before.
absl::StatusOr<bool> InsertJob(PostgresConnection& database, const JobRow& job);
absl::StatusOr<std::optional<uint64_t>> FindToken(PostgresConnection& database, const std::string& token);

// False: the key is known.
absl::StatusOr<bool> InsertIdempotencyKey(PostgresConnection& database, const JobRow& job, const std::string& key_hash,
                                          const std::string& digest);
absl::StatusOr<std::optional<KnownKey>> FindIdempotencyKey(PostgresConnection& database, const std::string& tenant,
                                                           const std::string& key_hash);

// Locks the jobs of those tasks.
absl::Status LockJobs(PostgresConnection& database, absl::Span<const uint64_t> tasks);
// Locks its job and reads it. NOT_FOUND.
absl::StatusOr<OwnedTask> LockTask(PostgresConnection& database, uint64_t task);
absl::StatusOr<OwnedTask> FindOwnedTask(PostgresConnection& database, uint64_t task);

// NOT_FOUND, or FAILED_PRECONDITION unless the task runs under that attempt and `server` has claimed it.
absl::Status CheckAttempt(const OwnedTask& task, const TaskAttempt& attempt, ServerId server);

// A server that shares the store, and the length of its leases.
struct SharingServer {
  ServerId id = 0;
  absl::Duration lease;
};

// As MoveTask of job_rows.h. `owner`: of a move to running. `bytes`: of the file, of a move to done.
struct TaskOwner {
  std::optional<ServerId> owner;
  int64_t bytes = 0;
};
absl::Status MoveTask(PostgresConnection& database, const SharingServer& server, const TaskRow& task,
                      const TaskMove& move, const TaskOwner& owner = {});

absl::StatusOr<std::string> ReadRequest(PostgresConnection& database, uint64_t job);

// Those of the jobs that are there, by number, newest first, in one snapshot. A damaged row is shown as a failed one.
absl::StatusOr<std::vector<JobRecord>> ReadJobs(PostgresConnection& database, const RecordIds& ids, ServerId server,
                                                absl::Span<const uint64_t> numbers);
// NOT_FOUND also for a job of another tenant, and for a wrong token.
absl::StatusOr<JobRecord> ReadJob(PostgresConnection& database, const RecordIds& ids, ServerId server,
                                  const std::string& tenant, const std::string& id);
absl::StatusOr<std::vector<uint64_t>> JobsOf(PostgresConnection& database, absl::Span<const uint64_t> tasks);

// Those of the tasks that are there.
absl::StatusOr<std::vector<uint64_t>> KnownTasks(PostgresConnection& database, absl::Span<const uint64_t> tasks);

absl::StatusOr<std::vector<uint64_t>> ListJobs(PostgresConnection& database, const std::string& tenant,
                                               std::optional<JobState> state, uint64_t before, int32_t limit);
absl::StatusOr<std::vector<OpenTask>> ListOpen(PostgresConnection& database, ServerId server);

// Locks them until the end of the transaction, those that others have locked left out.
absl::StatusOr<std::vector<uint64_t>> LockExpired(PostgresConnection& database, absl::Duration running, int64_t limit);
absl::StatusOr<std::vector<uint64_t>> LockEnded(PostgresConnection& database, int64_t limit);
absl::Status DeleteJobs(PostgresConnection& database, absl::Span<const uint64_t> jobs);
absl::StatusOr<int64_t> ResultBytes(PostgresConnection& database);
absl::StatusOr<StateCounts> CountStates(PostgresConnection& database);

// At most `limit` queued tasks above `after`, by number.
absl::StatusOr<std::vector<StoredTask>> ReadQueue(PostgresConnection& database, uint64_t after, int32_t limit);

// The server's lease begins now, by the clock of the database.
absl::Status RenewLease(PostgresConnection& database, ServerId server, const std::string& name, absl::Duration lease);
// Locks the server's lease, so that nobody takes back what it has until the transaction ends; begins it anew if it is
// over.
absl::Status HoldLease(PostgresConnection& database, ServerId server, const std::string& name, absl::Duration lease);
// The server has nothing more to do with what it has.
absl::Status EndLease(PostgresConnection& database, ServerId server);

// Queues again, without blame, what servers run whose leases are over, and forgets these servers; those that somebody
// else takes care of are left out. After the database has started every server has the time of a lease to come back.
struct TakenBack {
  int64_t tasks = 0;
  std::vector<uint64_t> jobs;
};
absl::StatusOr<TakenBack> TakeBackExpired(PostgresConnection& database, const SharingServer& server);

// What servers of an older version have ended gets the end of its retention, which begins now.
absl::Status KeepOthersJobs(PostgresConnection& database, const SharingServer& server, const TaskMove& move);

absl::StatusOr<absl::Time> DatabaseTime(PostgresConnection& database);
// The newest of all times in the records; in the past where there are none.
absl::StatusOr<absl::Time> NewestTime(PostgresConnection& database);

// The running time that the servers keep together, after this one has measured `running`; that of a server whose lease
// is over counts for nothing, so what each has measured since it said so last is less than a lease.
absl::StatusOr<absl::Duration> ShareRunningTime(PostgresConnection& database, ServerId server, absl::Duration running);
absl::StatusOr<absl::Duration> ReadRunningTime(PostgresConnection& database);
// Whether it ever had a job.
absl::StatusOr<bool> HadJobs(PostgresConnection& database);

}  // namespace tessera::server
