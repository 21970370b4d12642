// The durable queue: every job that was ever acknowledged, until its retention ends.
//
// A call that changes something returns after the change is on the disk: SQLite in WAL mode with synchronous=FULL. The
// changes of all callers that wait at the same time share one transaction and one sync.
// Reads go over a second connection and see committed changes only.
//
// Tasks move as task_state.h says. Whoever claims a task gets its attempt number and must show it with every report: a
// report with another one is refused, so a worker that was given up can finish nothing. What is running when the
// process ends is queued again by the next Open. While it lives, its worker group watches over what it runs.
//
// Times of rows are calendar time at Open plus time that never jumps, and never before the newest row.
//
// Thread-safe. Errors: NOT_FOUND for what does not exist or belongs to another tenant; FAILED_PRECONDITION for an
// illegal move or an old attempt; RESOURCE_EXHAUSTED for a full disk, UNAVAILABLE for another failure of it: nothing
// was changed then, and the store goes on; DATA_LOSS for what is there but damaged. What the disk does is one state,
// trouble(), of the database and the result files together (storage_health.h).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "server/jobs/failpoint.h"
#include "server/jobs/job_record.h"
#include "server/jobs/result_files.h"
#include "server/jobs/storage_health.h"
#include "server/jobs/task_state.h"

namespace tessera {

struct JobStoreOptions {
  std::string path;                            // of the database; its folder exists
  ResultFiles* files = nullptr;                // must outlive the store
  const Clock* clock = nullptr;                // must outlive the store
  std::string vfs;                             // SQLite's name of its file layer; empty: the system's own
  absl::Duration retention = absl::Hours(24);  // of an ended job, its images and its idempotency key
  int64_t retention_bytes = 0;                 // of the images of all ended jobs; 0: no bound
  uint64_t max_image_bytes = uint64_t{1} << 30;
  absl::Duration patience;             // with another process that has the store and may be just ending
  AtPoint at_point;                    // may be empty
  StorageHealth::OnChange on_storage;  // may be empty; must not call the store
};

struct SubmittedJob {
  JobRecord job;
  bool existed = false;  // an earlier submission under the same idempotency key
};

struct Recovery {
  int64_t given_back = 0;  // tasks that were running when the last process ended
  int64_t queued = 0;      // tasks that are queued now, those included
  int64_t damaged = 0;     // rows that could not be read, now failed
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

class JobStore {
 public:
  static constexpr int kSchemaVersion = 4;

  // Creates the database, or brings an older schema up to date, and queues again what was running. FAILED_PRECONDITION
  // for a schema that is newer than this program, and for an empty database beside images that it knows nothing of;
  // DATA_LOSS for a file that is no database of this kind, or a damaged one: it is checked before anything is changed.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(const JobStoreOptions& options);
  ~JobStore();  // waits for the calls under way

  // Hands out every queued task in the order of submission. A row that cannot be read fails, with the reason, and is
  // counted; the others are handed out. Called once, before the first Finish; `visit` must not call the store.
  absl::StatusOr<Recovery> Recover(absl::FunctionRef<void(const QueuedTask&)> visit);

  // All tasks of the job or none. ALREADY_EXISTS for a known idempotency key with another digest.
  absl::StatusOr<SubmittedJob> Submit(const NewJob& job);

  // The same without waiting: `done` is called once, on a thread of the store or before this returns, and must not
  // block or call the store.
  void SubmitAsync(NewJob job, std::function<void(absl::StatusOr<SubmittedJob>)> done);

  // The job that was submitted under the key before. ALREADY_EXISTS if its digest is another one.
  absl::StatusOr<std::optional<JobRecord>> FindSubmission(const std::string& tenant, const IdempotencyKey& key) const;

  // queued → running. A damaged task is failed here and DATA_LOSS returned.
  absl::StatusOr<ClaimedTask> Claim(uint64_t task);

  // running → done, after the file is durable. After an error the task still runs and the call may be made again.
  absl::Status Finish(const TaskAttempt& attempt, const std::string& file, const ImageOrigin& origin);

  // running → failed; `error` is shown to the user.
  absl::Status Fail(const TaskAttempt& attempt, const absl::Status& error);

  // queued → failed: its deadline has passed, or no group can run it any more.
  absl::Status FailQueued(uint64_t task, const absl::Status& error);

  // running → queued without blame: the service ends, the guard refused the result, a restart of the group was wanted.
  absl::Status GiveBack(absl::Span<const TaskAttempt> attempts);

  // running → queued or quarantined for all tasks that were in a worker group when it died, in one transaction. Exactly
  // one means that it was alone. `reason` is shown to the user of a quarantined one.
  absl::StatusOr<std::vector<Verdict>> GroupDied(absl::Span<const TaskAttempt> attempts, const std::string& reason);

  // Every task that has not ended is cancelled, the running ones too: a later report about them is refused. The job as
  // it is then; one that had ended is as it was.
  absl::StatusOr<JobRecord> Cancel(const std::string& tenant, const std::string& job);

  absl::StatusOr<JobRecord> Get(const std::string& tenant, const std::string& job);

  // `limit` 1 … 1000; without a state those of all. INVALID_ARGUMENT for an `after` that no page gave.
  absl::StatusOr<JobRecordPage> List(const std::string& tenant, int32_t limit, const std::string& after,
                                     std::optional<JobState> state = std::nullopt);

  // The image's file, checked against its digest: DATA_LOSS if it is not what was written.
  absl::StatusOr<std::string> ReadImage(const std::string& tenant, const std::string& image);

  // Forgets jobs whose retention has ended, at most `limit`, and files that belong to no task. While the images have
  // more bytes than they may, the oldest ended jobs go as well, at most `limit`, but not the last one.
  absl::StatusOr<SweepReport> Sweep(int64_t limit);

  // Bytes of the files of all finished images.
  int64_t result_bytes() const;
  // Whether a Sweep would make room, as far as is known.
  bool has_too_many_bytes() const;

  // The time of rows.
  absl::Time Now() const;

  // Tasks in each state, by number of the state. Changes only with their moves.
  std::array<int64_t, kTaskStates> Counts() const;

  // What keeps the disk from taking changes and results. Waits for nothing.
  StorageTrouble trouble() const;
  bool can_write() const { return trouble().state == StorageState::kOk; }

  // Looks whether the store's files are where they were opened. Waits for no lock of the store.
  absl::Status CheckPlace();

  // A change of nothing, made durable as any other, and where results had no room, a file as large. The end of a
  // trouble if both succeed, but of damage.
  absl::Status TryWrite();

 private:
  class Impl;
  explicit JobStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
