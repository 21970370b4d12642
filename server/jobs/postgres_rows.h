// The rows of a job store in PostgreSQL: what job_rows.h leaves to the database. The caller provides a transaction with
// isolation READ COMMITTED.
//
// A move of a task requires the lock of its job's row, so the moves of one job are serialized and the job's state
// always matches its tasks. Several jobs are locked in the order of their numbers, and a server's row, if needed,
// before any of them.
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

struct OwnedTask {
  TaskRow row;
  std::optional<ServerId> owner;  // the server that claimed it last
  // Set for an ended task.
  absl::Status error;
  std::string image;  // in the form of stored_job.h
};

// Returns the number of the next job.
absl::StatusOr<uint64_t> TakeNumber(PostgresConnection& database);
// Returns false if a job with this token exists, which this process submitted before.
absl::StatusOr<bool> InsertJob(PostgresConnection& database, const JobRow& job);

// Locks the jobs of those tasks.
absl::Status LockJobs(PostgresConnection& database, absl::Span<const uint64_t> tasks);
// Locks the task's job and reads the task. NOT_FOUND.
absl::StatusOr<OwnedTask> LockTask(PostgresConnection& database, uint64_t task);
absl::StatusOr<OwnedTask> FindOwnedTask(PostgresConnection& database, uint64_t task);

// NOT_FOUND, or FAILED_PRECONDITION unless the task runs under that attempt and `server` has claimed it.
absl::Status CheckAttempt(const OwnedTask& task, const TaskAttempt& attempt, ServerId server);

// A server that shares the store, and the length of its leases.
struct SharingServer {
  ServerId id = 0;
  absl::Duration lease;
};

// For MoveTask, see job_rows.h. `owner`: for a move to running. `bytes`: size of the file, for a move to done.
struct TaskOwner {
  std::optional<ServerId> owner;
  int64_t bytes = 0;
};
absl::Status MoveTask(PostgresConnection& database, const SharingServer& server, const TaskRow& task,
                      const TaskMove& move, const TaskOwner& owner = {});

// Reads those of the jobs that exist, newest first, in one snapshot. A damaged row appears as a failed task.
absl::StatusOr<std::vector<JobRecord>> ReadJobs(PostgresConnection& database, const RecordIds& ids, ServerId server,
                                                absl::Span<const uint64_t> numbers);
// NOT_FOUND also for a job of another tenant and for a wrong token.
absl::StatusOr<JobRecord> ReadJob(PostgresConnection& database, const RecordIds& ids, ServerId server,
                                  const std::string& tenant, const std::string& id);
absl::StatusOr<std::vector<uint64_t>> JobsOf(PostgresConnection& database, absl::Span<const uint64_t> tasks);

// Returns those of the tasks that exist.
absl::StatusOr<std::vector<uint64_t>> KnownTasks(PostgresConnection& database, absl::Span<const uint64_t> tasks);

absl::StatusOr<std::vector<uint64_t>> ListJobs(PostgresConnection& database, const std::string& tenant,
                                               std::optional<JobState> state, uint64_t before, int32_t limit);
absl::StatusOr<std::vector<OpenTask>> ListOpen(PostgresConnection& database, ServerId server);

// Lock jobs until the end of the transaction, skipping those that others have locked.
absl::StatusOr<std::vector<uint64_t>> LockExpired(PostgresConnection& database, absl::Duration running, int64_t limit);
absl::StatusOr<std::vector<uint64_t>> LockEnded(PostgresConnection& database, int64_t limit);
absl::Status DeleteJobs(PostgresConnection& database, absl::Span<const uint64_t> jobs);
absl::StatusOr<int64_t> ResultBytes(PostgresConnection& database);
absl::StatusOr<StateCounts> CountStates(PostgresConnection& database);

// Returns at most `limit` queued tasks above `after`, by number.
absl::StatusOr<std::vector<StoredTask>> ReadQueue(PostgresConnection& database, uint64_t after, int32_t limit);

// Starts the server's lease now by the database's clock.
absl::Status RenewLease(PostgresConnection& database, ServerId server, const std::string& name, absl::Duration lease);
// Locks the server's lease, so that no other server takes back its tasks until the transaction ends; restarts the lease
// if it has expired.
absl::Status HoldLease(PostgresConnection& database, ServerId server, const std::string& name, absl::Duration lease);
// Ends the lease: the server has finished with its tasks.
absl::Status EndLease(PostgresConnection& database, ServerId server);

// TakeBackExpired queues again, without blame, the running tasks of servers whose leases have expired, and deletes
// these servers. It skips servers that another process is handling. After the database has started, every server has
// the length of a lease to come back.
struct TakenBack {
  int64_t tasks = 0;
  std::vector<uint64_t> jobs;
};
absl::StatusOr<TakenBack> TakeBackExpired(PostgresConnection& database, const SharingServer& server);

// Starts the retention of jobs that servers of an older version have ended.
absl::Status KeepOthersJobs(PostgresConnection& database, const SharingServer& server, const TaskMove& move);

absl::StatusOr<absl::Time> DatabaseTime(PostgresConnection& database);

// Returns the servers' shared running time after this one has measured `running`. A server whose lease has expired does
// not contribute, so the shared time lacks less than a lease of what each server has measured.
absl::StatusOr<absl::Duration> ShareRunningTime(PostgresConnection& database, ServerId server, absl::Duration running);
absl::StatusOr<absl::Duration> ReadRunningTime(PostgresConnection& database);
// Returns whether the database ever had a job.
absl::StatusOr<bool> HadJobs(PostgresConnection& database);

}  // namespace tessera::server
