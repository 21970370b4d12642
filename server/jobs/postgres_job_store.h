// PostgresJobStore is a JobStore in a PostgreSQL database that several servers share; they also share the ResultStore
// with its results.
//
// A running task belongs to the server that has claimed it as long as that server's lease lasts. The lease is a row
// that each server renews with the database's time, which is the same for all servers. Tasks of a server whose lease
// has expired are queued again, without blame, by the first server that sees it. A report needs the task's attempt and
// its server, so a server that has lost a task cannot finish it, whatever its clock says.
//
// Every change can be repeated: if the connection is lost while a COMMIT is unanswered, the change is made again over
// another connection, and finds out whether it was made before. If that cannot be determined in time, the call fails
// with UNAVAILABLE, and the next call decides the change in doubt.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/threads/task_pool.h"
#include "base/time/clock.h"
#include "server/jobs/claims_in_doubt.h"
#include "server/jobs/failpoint.h"
#include "server/jobs/job_store.h"
#include "server/jobs/postgres_link.h"
#include "server/jobs/postgres_pool.h"
#include "server/jobs/postgres_rows.h"
#include "server/jobs/record_ids.h"
#include "server/jobs/store_disk.h"
#include "server/jobs/store_rules.h"
#include "server/jobs/store_time.h"

namespace tessera::server {

struct PostgresJobStoreOptions {
  PostgresAddress address;
  std::string name;                          // name of this server for operators
  ResultStore* files = nullptr;              // must outlive the store
  const base::Clock* clock = nullptr;        // measures elapsed time; must outlive the store
  absl::Duration lease = absl::Seconds(15);  // after a server is gone this long, others execute its tasks
  // Running time (store_time.h) for which an ended job, its images and its idempotency key are kept.
  absl::Duration retention = absl::Hours(24);
  int64_t retention_bytes = 0;  // bytes of all ended jobs' images; 0: no bound
  uint64_t max_image_bytes = uint64_t{1} << 30;
  AtPoint at_point;                    // may be empty
  StorageHealth::OnChange on_storage;  // may be empty; must not call the store
};

class PostgresJobStore final : public JobStore {
 public:
  static constexpr int kSchemaVersion = 3;

  // Creates the tables or migrates an older schema, and takes back the tasks of servers whose leases have expired.
  // FAILED_PRECONDITION: the schema is newer than this program, or the database is empty although there are images.
  // Also returns errors of PostgresConnection.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(const PostgresJobStoreOptions& options);
  ~PostgresJobStore() override;  // ends the lease: other servers queue its tasks again

  absl::StatusOr<Recovery> Recover(absl::FunctionRef<void(const QueuedTask&)> visit) override;
  bool is_shared() const override { return true; }
  void Observe(QueueObserver* observer) override;
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
  absl::StatusOr<SweepReport> Sweep(int64_t limit) override;
  int64_t result_bytes() const override { return result_bytes_; }  // as of the last comparison
  bool has_too_many_bytes() const override;
  absl::Time Now() const override { return time_.Now(); }
  absl::Time Calendar() const override { return time_.Calendar(); }
  std::optional<absl::Time> ExpiryOf(const JobRecord& job) const override;
  std::array<int64_t, kTaskStates> Counts() const override;  // reads the database; zeros if it does not answer
  StorageTrouble trouble() const override { return disk_.health().trouble(); }
  absl::Status CheckPlace() override { return disk_.CheckPlace(); }
  absl::Status TryWrite() override;

 private:
  using Call = absl::FunctionRef<absl::Status(PostgresConnection&)>;

  // What the database returns at the start.
  struct Opened {
    RecordIds ids;
    absl::Time now, newest;
    absl::Duration running;
  };

  PostgresJobStore(const PostgresJobStoreOptions& options, Opened opened);
  absl::Status Begin();  // the part of Open that uses the store's connections

  // Runs a transaction; `apply` may be called several times, and must recognize what an earlier call has committed.
  absl::Status Change(const char* name, Call apply);
  // `was_tried`: a connection was available for the call.
  absl::Status TryChange(const char* name, Call apply, bool& was_tried, bool& in_doubt);
  absl::Status Read(Call call) const;
  void OnFailure(const absl::Status& failure) const;
  // Moves one running task, unless it was already moved like this, and adds to the totals of usage.
  absl::Status End(const char* name, const TaskAttempt& attempt, const TaskMove& move, int64_t bytes,
                   absl::FunctionRef<bool(const OwnedTask&)> is_done, const KeyUsage& usage = {});
  TaskMove MoveTo(TaskState to) const {
    return {.to = to, .now = Calendar(), .running = time_.Running(), .retention = options_.retention};
  }
  TaskMove MoveToFailed(const absl::Status& error) const { return WithError(MoveTo(TaskState::kFailed), error); }
  absl::StatusOr<SubmittedJob> Keep(NewJob job);
  bool IsWanted(const std::string& file) const;
  int64_t RemoveOrphans();
  absl::StatusOr<TakenBack> TakeBack(const char* name);

  // Gives back tasks that were claimed without an answer and not claimed again since.
  void GiveBackDoubtful();

  // Hooks of the link.
  void Renew();
  void NotifyObserver(const std::vector<uint64_t>& jobs);
  void Compare();

  // Called in a transaction; adds the running time measured here and takes over the servers' shared one.
  absl::StatusOr<absl::Duration> ShareTime(PostgresConnection& database);

  const PostgresJobStoreOptions options_;
  const ServerId server_;
  const SharingServer sharing_;
  const RecordIds ids_;
  mutable StoreDisk disk_;
  mutable PostgresPool pool_;
  StoreTime time_;
  Recovery recovered_;      // when the store was opened
  std::mutex trial_mutex_;  // one trial of the disk at a time

  std::mutex observer_mutex_;  // held during the observer's calls
  QueueObserver* observer_ = nullptr;

  ClaimsInDoubt claims_in_doubt_;
  std::mutex temporaries_mutex_;
  // Left-over files and when they were first seen; guarded by temporaries_mutex_.
  std::map<std::string, absl::Duration> old_temporaries_;
  std::atomic<int64_t> result_bytes_ = 0;
  std::atomic<int64_t> bytes_after_sweep_ = -1;
  std::atomic<int64_t> usage_swept_ = -1;

  std::unique_ptr<PostgresLink> link_;
  std::unique_ptr<base::TaskPool> submissions_;  // last, because they use the other members
};

}  // namespace tessera::server
