// JobStore is the durable queue: it holds every acknowledged job until its retention ends.
//
// It is an interface: sqlite_job_store.h keeps the jobs in a database file, postgres_job_store.h in a database that
// several processes share. A call that changes something returns after the change is durable; reads see only durable
// changes.
//
// Tasks move as task_state.h says. A claim returns the task's attempt number, which every report must carry. A report
// with another number is refused, so a worker whose task was given back cannot finish it. Tasks that run when the
// process ends are queued again by the next one, or by another process that shares the queue. While the process lives,
// its worker groups monitor their tasks.
//
// Records have calendar time, whichever clock set it. Ended jobs are kept for their retention in running time
// (store_time.h).
//
// Thread-safe. Errors: NOT_FOUND: it does not exist or belongs to another tenant. FAILED_PRECONDITION: invalid move or
// old attempt. RESOURCE_EXHAUSTED: the disk is full; UNAVAILABLE: another failure of the disk. After these two nothing
// has changed, and the store continues to work. DATA_LOSS: the record exists but is damaged. trouble() is the disk's
// common state for jobs and results (storage_health.h).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/files/byte_source.h"
#include "server/jobs/job_record.h"
#include "server/jobs/storage_health.h"
#include "server/jobs/task_state.h"

namespace tessera::server {

struct ClaimedTask;
struct IdempotencyKey;
struct NewJob;

struct SubmittedJob {
  JobRecord job;
  bool existed = false;  // the job is an earlier submission under the same idempotency key
};

struct Recovery {
  int64_t given_back = 0;  // tasks that were running when the process that had claimed them ended
  int64_t queued = 0;      // tasks that are queued now, including given_back
  int64_t damaged = 0;     // unreadable rows, failed now
  // The newest time in the records and the calendar time, both when the store was opened. If the newest time is in the
  // future, the clock was wrong then or is wrong now.
  absl::Time newest = absl::InfinitePast();
  absl::Time opened = absl::InfiniteFuture();
};

struct JobRecordPage {
  std::vector<JobRecord> jobs;  // newest first
  std::string next;             // `after` of the next page; empty: this is the last page
};

struct SweepReport {
  int64_t jobs = 0;     // jobs whose retention had ended
  int64_t oldest = 0;   // jobs removed early because of the bytes of their images
  int64_t orphans = 0;  // files that belonged to no task
};

// The store's decision on a task whose worker died.
struct Verdict {
  TaskAttempt attempt;
  TaskState state = TaskState::kQueued;  // or kQuarantined; any other state: it had ended before
  Blame blame;
};

// A waiting or running task.
struct OpenTask {
  uint64_t task = 0;
  TaskState state = TaskState::kQueued;
  int32_t attempt = 0;
  bool elsewhere = false;  // it runs, and another process has claimed it
};

// Gets notices of what other processes do to a queue that they share with this one. Called on a thread of the store,
// one call at a time; must not call the store.
class QueueObserver {
 public:
  virtual ~QueueObserver() = default;

  // The job shortly after another process has changed it. A notice may come twice, and may report a change of this
  // process.
  virtual void OnChanged(const JobRecord& job) = 0;
  // Every open task as of a moment ago. Called periodically, and after the store has missed notices. Returns the tasks
  // whose state the observer knows differently; it is notified of their jobs next.
  virtual std::vector<uint64_t> Compare(absl::Span<const OpenTask> open) = 0;
  // The task no longer exists because its job was swept.
  virtual void OnGone(uint64_t task) = 0;
};

class JobStore {
 public:
  virtual ~JobStore() = default;  // waits for running calls

  // Visits every queued task in the order of submission, with creation times that never decrease and are not in the
  // future. A row that cannot be read is failed with the reason, and is counted; the others are visited. Called once,
  // before the first Finish; `visit` must not call the store.
  virtual absl::StatusOr<Recovery> Recover(absl::FunctionRef<void(const QueuedTask&)> visit) = 0;

  // Returns whether other processes may execute tasks that this one cannot.
  virtual bool is_shared() const { return false; }
  // Replaces the observer; null: none, and no call is running when this returns. A queue of this process alone sends no
  // notices.
  virtual void Observe(QueueObserver* observer) {}

  // Submits all tasks of the job or none. ALREADY_EXISTS for a known idempotency key with another digest.
  virtual absl::StatusOr<SubmittedJob> Submit(const NewJob& job) = 0;

  // Submits without waiting: `done` is called once, on a thread of the store or before this returns, and must not block
  // or call the store.
  virtual void SubmitAsync(NewJob job, std::function<void(absl::StatusOr<SubmittedJob>)> done) = 0;

  // Returns the job that was submitted under the key before. ALREADY_EXISTS if its digest differs.
  virtual absl::StatusOr<std::optional<JobRecord>> FindSubmission(const std::string& tenant,
                                                                  const IdempotencyKey& key) = 0;

  // queued → running. A damaged task is failed here, and DATA_LOSS is returned. ABORTED: another process was first; the
  // observer gets the task's later state.
  virtual absl::StatusOr<ClaimedTask> Claim(uint64_t task) = 0;

  // running → done, durable together with the file. After an error the task still runs and the call may be repeated.
  virtual absl::Status Finish(const TaskAttempt& attempt, const std::string& file, const ImageOrigin& origin) = 0;

  // running → failed; `error` is shown to the user, and `usage` is added to the totals of the day together with the
  // failure.
  virtual absl::Status Fail(const TaskAttempt& attempt, const absl::Status& error, const KeyUsage& usage) = 0;

  // queued → failed: its deadline has passed, or no group can execute it any more.
  virtual absl::Status FailQueued(uint64_t task, const absl::Status& error) = 0;

  // running → queued without blame: the service ends, the guard refused the result, or a restart of the group was
  // requested.
  virtual absl::Status GiveBack(absl::Span<const TaskAttempt> attempts) = 0;

  // running → queued or quarantined for all tasks that were in a worker group when it died, in one transaction. A
  // single attempt means that the task was alone. `reason` is shown to the user of a quarantined task.
  virtual absl::StatusOr<std::vector<Verdict>> GroupDied(absl::Span<const TaskAttempt> attempts,
                                                         const std::string& reason) = 0;

  // Cancels every task that has not ended, including running ones: later reports about them are refused. Returns the
  // job afterwards; an ended job is unchanged.
  virtual absl::StatusOr<JobRecord> Cancel(const std::string& tenant, const std::string& job) = 0;

  virtual absl::StatusOr<JobRecord> Get(const std::string& tenant, const std::string& job) = 0;

  // `limit` is 1 … 1000; without a state, all states are listed. NOT_FOUND for an `after` that no page returned.
  virtual absl::StatusOr<JobRecordPage> List(const std::string& tenant, int32_t limit, const std::string& after,
                                             std::optional<JobState> state = std::nullopt) = 0;

  // Adds usage to the totals of the day, apart from what Finish and Fail add.
  virtual absl::Status AddUsage(const KeyUsage& usage) { return absl::OkStatus(); }

  // Returns the totals by day, key and model, in this order, of all servers that share the store.
  // INVALID_ARGUMENT if there are more than kMaxUsageRows.
  virtual absl::StatusOr<std::vector<DayUsage>> Usage(const UsageQuery& query) { return std::vector<DayUsage>(); }

  // Opens the image's file after checking it against its digest; DATA_LOSS if it differs from what was written. Later
  // reads fail once the file is no longer the one that was checked. The result must not outlive the store.
  virtual absl::StatusOr<base::SharedBytes> OpenImage(const std::string& tenant, const std::string& image) = 0;

  // Moves images that were committed with their tasks to files, at most `limit`; returns how many. They stay readable
  // meanwhile.
  virtual absl::StatusOr<int64_t> SettleImages(int64_t limit) { return 0; }

  // Removes jobs whose retention has ended, at most `limit`, totals of usage of all days but the last kUsageDays that
  // have any, and files that belong to no task. While the images exceed
  // the bound of their bytes, it also removes the oldest ended jobs, at most `limit`, but never the last one.
  virtual absl::StatusOr<SweepReport> Sweep(int64_t limit) = 0;

  // Returns the total size of the files of all finished images.
  virtual int64_t result_bytes() const = 0;
  // Returns whether a Sweep is expected to free space.
  virtual bool has_too_many_bytes() const = 0;

  // Returns the time for waits and deadlines: the calendar time when the store was opened plus elapsed time that never
  // jumps.
  virtual absl::Time Now() const = 0;
  // Returns the time for records: the calendar time, which may jump.
  virtual absl::Time Calendar() const { return Now(); }
  // Returns when an ended job's retention ends, provided that a server works on the store until then.
  virtual std::optional<absl::Time> ExpiryOf(const JobRecord& job) const { return std::nullopt; }

  // Returns the number of tasks in each state, indexed by the state's number. It changes only with moves.
  virtual std::array<int64_t, kTaskStates> Counts() const = 0;

  // Returns what prevents the disk from taking changes and results. Never waits.
  virtual StorageTrouble trouble() const = 0;
  bool can_write() const { return trouble().state == StorageState::kOk; }

  // Checks that the files are still where they were opened. Takes no lock of the store.
  virtual absl::Status CheckPlace() = 0;

  // Commits an empty change as durably as any other and, if results had no space, writes a file of that size. If both
  // succeed, the trouble ends, unless it is damage.
  virtual absl::Status TryWrite() = 0;
};

}  // namespace tessera::server
