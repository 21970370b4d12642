// The durable queue: every job that was ever acknowledged, until its retention ends.
//
// An interface: sqlite_job_store.h keeps it in a database file, postgres_job_store.h in a database that several
// processes share. A call that changes something returns after the change is durable; reads see durable changes only.
//
// Tasks move as task_state.h says. Whoever claims a task gets its attempt number and must show it with every report: a
// report with another one is refused, so a worker that was given up can finish nothing. What is running when the
// process ends is queued again by the next one, or by another one that shares the queue. While it lives, its worker
// group watches over what it runs.
//
// Its records have the calendar's time, whatever clock said it. What has ended is kept for its retention of running
// time (store_time.h).
//
// Thread-safe. Errors: NOT_FOUND for what does not exist or belongs to another tenant; FAILED_PRECONDITION for an
// invalid move or an old attempt; RESOURCE_EXHAUSTED for a full disk, UNAVAILABLE for another failure of it: nothing
// was changed then, and the store goes on; DATA_LOSS for what is there but damaged. What the disk does is one state,
// trouble(), of jobs and results together (storage_health.h).
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
#include "base/byte_source.h"
#include "server/jobs/job_record.h"
#include "server/jobs/storage_health.h"
#include "server/jobs/task_state.h"

namespace tessera::server {

struct SubmittedJob {
  JobRecord job;
  bool existed = false;  // an earlier submission under the same idempotency key
};

struct Recovery {
  int64_t given_back = 0;  // tasks that were running when the process ended that had claimed them
  int64_t queued = 0;      // tasks that are queued now, those included
  int64_t damaged = 0;     // rows that could not be read, now failed
  // The newest time in the records and that of the calendar, when the store was opened. A newest one in the future is
  // of a clock that was wrong then, or is now.
  absl::Time newest = absl::InfinitePast();
  absl::Time opened = absl::InfiniteFuture();
};

struct JobRecordPage {
  std::vector<JobRecord> jobs;  // newest first
  std::string next;             // `after` of the next page; empty: this is the last
};

struct SweepReport {
  int64_t jobs = 0;     // whose retention had ended
  int64_t oldest = 0;   // that went before their time, for the bytes of their images
  int64_t orphans = 0;  // files that belonged to no task
};

// What became of a task whose worker died.
struct Verdict {
  TaskAttempt attempt;
  TaskState state = TaskState::kQueued;  // or kQuarantined; another: it had ended before
  Blame blame;
};

// A task that waits or runs.
struct OpenTask {
  uint64_t task = 0;
  TaskState state = TaskState::kQueued;
  int32_t attempt = 0;
  bool elsewhere = false;  // it runs, and another process has claimed it
};

// Hears what other processes do to a queue that they share with this one. Called on a thread of the store, one call at
// a time; must not call the store.
class QueueObserver {
 public:
  virtual ~QueueObserver() = default;

  // The job as it is a moment after another process has changed it. It may be told twice, and of what this process did.
  virtual void OnChanged(const JobRecord& job) = 0;
  // Every open task a moment ago: now and then, and when the store had not listened for a while. Returns those of
  // which the observer knows something else: it is notified of their jobs next.
  virtual std::vector<uint64_t> Compare(absl::Span<const OpenTask> open) = 0;
  // The task is no more: its job was swept.
  virtual void OnGone(uint64_t task) = 0;
};

class JobStore {
 public:
  virtual ~JobStore() = default;  // waits for the calls under way

  // Hands out every queued task in the order of submission, with times of creation that never decrease and have been. A
  // row that cannot be read fails, with the reason, and is counted; the others are handed out. Called once, before the
  // first Finish; `visit` must not call the store.
  virtual absl::StatusOr<Recovery> Recover(absl::FunctionRef<void(const QueuedTask&)> visit) = 0;

  // Whether other processes may make what this one cannot.
  virtual bool is_shared() const { return false; }
  // From now on; null: nobody, and no call is under way when this returns. A queue of this process alone tells nothing.
  virtual void Observe(QueueObserver* observer) {}

  // All tasks of the job or none. ALREADY_EXISTS for a known idempotency key with another digest.
  virtual absl::StatusOr<SubmittedJob> Submit(const NewJob& job) = 0;

  // As Submit, without waiting: `done` is called once, on a thread of the store or before this returns, and must not
  // block or call the store.
  virtual void SubmitAsync(NewJob job, std::function<void(absl::StatusOr<SubmittedJob>)> done) = 0;

  // The job that was submitted under the key before. ALREADY_EXISTS if its digest is another one.
  virtual absl::StatusOr<std::optional<JobRecord>> FindSubmission(const std::string& tenant,
                                                                  const IdempotencyKey& key) = 0;

  // queued → running. A damaged task is failed here and DATA_LOSS returned. ABORTED: another process was first; what
  // became of the task is reported to the observer.
  virtual absl::StatusOr<ClaimedTask> Claim(uint64_t task) = 0;

  // running → done, durable together with the file. After an error the task still runs and the call may be made again.
  virtual absl::Status Finish(const TaskAttempt& attempt, const std::string& file, const ImageOrigin& origin) = 0;

  // running → failed; `error` is shown to the user.
  virtual absl::Status Fail(const TaskAttempt& attempt, const absl::Status& error) = 0;

  // queued → failed: its deadline has passed, or no group can run it any more.
  virtual absl::Status FailQueued(uint64_t task, const absl::Status& error) = 0;

  // running → queued without blame: the service ends, the guard refused the result, a restart of the group was wanted.
  virtual absl::Status GiveBack(absl::Span<const TaskAttempt> attempts) = 0;

  // running → queued or quarantined for all tasks that were in a worker group when it died, in one transaction. Exactly
  // one means that it was alone. `reason` is shown to the user of a quarantined one.
  virtual absl::StatusOr<std::vector<Verdict>> GroupDied(absl::Span<const TaskAttempt> attempts,
                                                         const std::string& reason) = 0;

  // Every task that has not ended is cancelled, the running ones too: a later report about them is refused. The job as
  // it is then; one that had ended is as it was.
  virtual absl::StatusOr<JobRecord> Cancel(const std::string& tenant, const std::string& job) = 0;

  virtual absl::StatusOr<JobRecord> Get(const std::string& tenant, const std::string& job) = 0;

  // `limit` 1 … 1000; without a state those of all. NOT_FOUND for an `after` that no page gave.
  virtual absl::StatusOr<JobRecordPage> List(const std::string& tenant, int32_t limit, const std::string& after,
                                             std::optional<JobState> state = std::nullopt) = 0;

  // The image's file, checked against its digest: DATA_LOSS if it is not what was written. Its pieces are then read one
  // by one, with an error once they are no longer what was checked. It must not outlive the store.
  virtual absl::StatusOr<base::SharedBytes> OpenImage(const std::string& tenant, const std::string& image) = 0;

  // Brings images that were made durable with their tasks into files of their own, at most `limit`; how many those
  // were. They can be read meanwhile.
  virtual absl::StatusOr<int64_t> SettleImages(int64_t limit) { return 0; }

  // Forgets jobs whose retention has ended, at most `limit`, and files that belong to no task. While the images have
  // more bytes than they may, the oldest ended jobs go as well, at most `limit`, but not the last one.
  virtual absl::StatusOr<SweepReport> Sweep(int64_t limit) = 0;

  // Bytes of the files of all finished images.
  virtual int64_t result_bytes() const = 0;
  // Whether a Sweep would make room, as far as is known.
  virtual bool has_too_many_bytes() const = 0;

  // The time of waits and deadlines: the calendar's when the store was opened plus time that never jumps.
  virtual absl::Time Now() const = 0;
  // The time of records: the calendar's, which may jump.
  virtual absl::Time Calendar() const { return Now(); }
  // When an ended job's retention will be over, if a server works on the store until then.
  virtual std::optional<absl::Time> ExpiryOf(const JobRecord& job) const { return std::nullopt; }

  // Tasks in each state, by number of the state. Changes only with their moves.
  virtual std::array<int64_t, kTaskStates> Counts() const = 0;

  // What keeps the disk from taking changes and results. Waits for nothing.
  virtual StorageTrouble trouble() const = 0;
  bool can_write() const { return trouble().state == StorageState::kOk; }

  // Looks whether what is kept is where it was opened. Waits for no lock of the store.
  virtual absl::Status CheckPlace() = 0;

  // A change of nothing, made durable as any other, and where results had no room, a file as large. The end of a
  // trouble if both succeed, but of damage.
  virtual absl::Status TryWrite() = 0;
};

}  // namespace tessera::server
