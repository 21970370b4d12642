// SqliteJobStore is a JobStore in one SQLite database in WAL mode with synchronous=FULL, with its results in a
// ResultStore.
//
// A small image is committed together with the end of its task, in one sync, and moved to a file later.
//
// Changes of all callers that wait at the same time share one transaction and one sync (group_commit.h). Reads use a
// second connection and see only committed changes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/files/process_lock.h"
#include "base/time/clock.h"
#include "server/jobs/failpoint.h"
#include "server/jobs/group_commit.h"
#include "server/jobs/job_store.h"
#include "server/jobs/job_submission.h"
#include "server/jobs/record_ids.h"
#include "server/jobs/sqlite.h"
#include "server/jobs/sqlite_rows.h"
#include "server/jobs/store_disk.h"
#include "server/jobs/store_rules.h"
#include "server/jobs/store_time.h"

namespace tessera::server {

struct SqliteJobStoreOptions {
  std::string path;                    // path of the database; its folder must exist
  ResultStore* files = nullptr;        // must outlive the store
  const base::Clock* clock = nullptr;  // must outlive the store
  std::string vfs;                     // name of SQLite's file layer; empty: the system default
  // Running time (store_time.h) for which an ended job, its images and its idempotency key are kept.
  absl::Duration retention = absl::Hours(24);
  int64_t retention_bytes = 0;  // bytes of all ended jobs' images; 0: no bound
  uint64_t max_image_bytes = uint64_t{1} << 30;
  uint64_t most_committed_bytes = 0;   // up to this size an image is committed with its task
  absl::Duration timeout;              // wait for another process that has the store and may be about to end
  AtPoint at_point;                    // may be empty
  StorageHealth::OnChange on_storage;  // may be empty; must not call the store
};

class SqliteJobStore final : public JobStore {
 public:
  static constexpr int kSchemaVersion = 8;

  // Creates the database or migrates an older schema, and queues running tasks again. FAILED_PRECONDITION: the schema
  // is newer than this program, or the database is empty although there are images. DATA_LOSS: the file is not such a
  // database or is damaged; it is checked before anything is changed.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(const SqliteJobStoreOptions& options);
  ~SqliteJobStore() override;

  absl::StatusOr<Recovery> Recover(absl::FunctionRef<void(const QueuedTask&)> visit) override;
  absl::StatusOr<SubmittedJob> Submit(const NewJob& job) override;
  void SubmitAsync(NewJob job, std::function<void(absl::StatusOr<SubmittedJob>)> done) override;
  absl::StatusOr<std::optional<JobRecord>> FindSubmission(const std::string& tenant,
                                                          const IdempotencyKey& key) override;
  absl::StatusOr<ClaimedTask> Claim(uint64_t task) override;
  absl::Status Finish(const TaskAttempt& attempt, const std::string& file, const ImageOrigin& origin) override;
  absl::Status Fail(const TaskAttempt& attempt, const absl::Status& error, const KeyUsage& usage) override;
  absl::Status FailQueued(uint64_t task, const absl::Status& error) override;
  absl::Status GiveBack(absl::Span<const TaskAttempt> attempts) override;
  absl::StatusOr<std::vector<Verdict>> GroupDied(absl::Span<const TaskAttempt> attempts,
                                                 const std::string& reason) override;
  absl::StatusOr<JobRecord> Cancel(const std::string& tenant, const std::string& job) override;
  absl::StatusOr<JobRecord> Get(const std::string& tenant, const std::string& job) override;
  absl::StatusOr<JobRecordPage> List(const std::string& tenant, int32_t limit, const std::string& after,
                                     std::optional<JobState> state) override;
  absl::Status AddUsage(const KeyUsage& usage) override;
  absl::StatusOr<std::vector<DayUsage>> Usage(const UsageQuery& query) override;
  absl::StatusOr<base::SharedBytes> OpenImage(const std::string& tenant, const std::string& image) override;
  absl::StatusOr<int64_t> SettleImages(int64_t limit) override;
  absl::StatusOr<SweepReport> Sweep(int64_t limit) override;
  int64_t result_bytes() const override;
  bool has_too_many_bytes() const override;
  absl::Time Now() const override { return time_.Now(); }
  absl::Time Calendar() const override;
  std::optional<absl::Time> ExpiryOf(const JobRecord& job) const override;
  std::array<int64_t, kTaskStates> Counts() const override;
  StorageTrouble trouble() const override;
  absl::Status CheckPlace() override;
  absl::Status TryWrite() override;

 private:
  // What Open reads before the store is constructed.
  struct Opened {
    base::ProcessLock lock;
    std::unique_ptr<SqliteDatabase> writer, reader;
    RecordIds ids;
    absl::Time now;
    absl::Duration running;
    uint64_t next_number = 0;
    Recovery recovery;
    StateCounts counts{};
    int64_t result_bytes = 0;
  };

  class CommittedImage;

  SqliteJobStore(const SqliteJobStoreOptions& options, Opened opened);

  // Runs a change that moves tasks; the counts are updated when it is committed.
  absl::Status Change(const char* name, const std::function<absl::Status(SqliteDatabase&, StateCounts&)>& apply,
                      Durability durability = Durability::kSynced);
  void Count(const StateCounts& delta);
  absl::StatusOr<SubmittedJob> ResultOf(const absl::Status& status, JobSubmission& submission);
  // Moves one running task, and adds to the totals of usage.
  absl::Status End(const char* name, const TaskAttempt& attempt, const TaskMove& move, const KeyUsage& usage = {});
  TaskMove MoveTo(TaskState to) const {
    return {.to = to, .now = Calendar(), .running = time_.Running(), .retention = options_.retention};
  }
  TaskMove MoveToFailed(const absl::Status& error) const { return WithError(MoveTo(TaskState::kFailed), error); }
  // Ends a task, with its image's bytes in the same transaction or in a file.
  absl::Status FinishTogether(const TaskAttempt& attempt, const std::string& bytes, const TaskMove& move,
                              const KeyUsage& usage);
  absl::Status FinishWithFile(const TaskAttempt& attempt, const std::string& bytes, const TaskMove& move,
                              const KeyUsage& usage);
  // False for a file that belongs to no running or done task.
  bool IsWanted(const std::string& file);

  template <typename Call>
  auto Read(const Call& call) {
    const std::lock_guard lock(read_mutex_);
    auto result = call(*reader_);
    if constexpr (requires { result.status(); }) {
      if (absl::IsDataLoss(result.status())) disk_.OnDatabaseFailure(result.status());
    }
    return result;
  }

  const SqliteJobStoreOptions options_;
  const base::ProcessLock lock_;
  mutable StoreTime time_;
  StoreDisk disk_;
  std::mutex trial_mutex_;   // one trial of the disk at a time
  std::mutex settle_mutex_;  // an image is settled once: if its job was swept meanwhile, its file is removed

  std::mutex read_mutex_;
  const std::unique_ptr<SqliteDatabase> reader_;  // guarded by read_mutex_

  const RecordIds ids_;
  uint64_t next_number_;      // used by the thread that writes
  const Recovery recovered_;  // when the store was opened
  std::array<std::atomic<int64_t>, kTaskStates> counts_{};
  std::atomic<int64_t> result_bytes_;
  std::atomic<int64_t> bytes_after_sweep_ = -1;  // size that the last sweep could not reduce
  std::atomic<int64_t> usage_swept_ = -1;        // day on which the totals of usage were last swept

  GroupCommit commit_;  // last, because its thread uses the other members
};

}  // namespace tessera::server
