#include "server/jobs/postgres_job_store.h"

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"
#include "base/time/steady_time.h"
#include "server/api/job.h"
#include "server/jobs/job_submission.h"
#include "server/jobs/new_job.h"
#include "server/jobs/postgres_schema.h"
#include "server/jobs/result_names.h"
#include "server/jobs/stored_job.h"
#include "server/jobs/stored_task.h"
#include "server/jobs/usage_rows.h"

namespace tessera::server {
namespace {

constexpr int32_t kQueueBatch = 512;
constexpr size_t kConnections = 12;
constexpr int kSubmissionThreads = 4;
constexpr int kRenewalsOfALease = 3;
// How long an unanswered commit is retried: a restarting database is back by then.
constexpr absl::Duration kDoubtTimeout = absl::Seconds(4);
constexpr absl::Duration kDoubtPause = absl::Milliseconds(50);
// Longer than any claim takes.
constexpr absl::Duration kOldDoubt = absl::Minutes(1);
constexpr int kMostLosses = 5;      // consecutive lost connections in one call
constexpr int kMostMeetings = 100;  // conflicts of one transaction with others before it fails
// A temporary file that has existed for this long belongs to no running write.
constexpr absl::Duration kOldTemporary = absl::Hours(1);

absl::Status CheckNothingIsMissing(const PostgresJobStoreOptions& options, PostgresConnection& database) {
  ASSIGN_OR_RETURN(const bool has_images, HoldsImages(*options.files));
  if (!has_images) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool had_jobs, HadJobs(database));
  if (had_jobs) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "there are images, but the database of the store, which records their owners, is empty: restore it, or set "
      "data_folder to an empty folder");
}

// Visits the tasks that exist, with their jobs locked.
absl::Status VisitLocked(PostgresConnection& database, absl::Span<const TaskAttempt> attempts,
                         absl::FunctionRef<absl::Status(const TaskAttempt&, const OwnedTask&)> visit) {
  std::vector<uint64_t> tasks;
  for (const TaskAttempt& attempt : attempts) tasks.push_back(attempt.task);
  RETURN_IF_ERROR(LockJobs(database, tasks));
  for (const TaskAttempt& attempt : attempts) {
    const absl::StatusOr<OwnedTask> task = FindOwnedTask(database, attempt.task);
    if (absl::IsNotFound(task.status())) continue;
    if (!task.ok()) return task.status();
    RETURN_IF_ERROR(visit(attempt, *task));
  }
  return absl::OkStatus();
}

ServerId NewServerId() { return static_cast<ServerId>(base::RandomNumber<uint64_t>() >> 1 | 1); }

}  // namespace

PostgresJobStore::PostgresJobStore(const PostgresJobStoreOptions& options, Opened opened)
    : options_(options),
      server_(NewServerId()),
      sharing_({.id = server_, .lease = options.lease}),
      ids_(std::move(opened.ids)),
      disk_(*options.files, StoragePlace(), *options.clock, options.on_storage),
      pool_(options.address, kConnections,
            [this](PostgresConnection& database) {
              absl::Status same = CheckSecret(database, ids_);
              if (absl::IsNotFound(same)) {
                disk_.health().Fail(StorageState::kMoved, same);
                return absl::UnavailableError(same.message());
              }
              return same;
            }),
      time_(*options.clock, opened.now, opened.running),
      recovered_({.newest = opened.newest, .opened = opened.now}) {}

absl::StatusOr<std::unique_ptr<JobStore>> PostgresJobStore::Open(const PostgresJobStoreOptions& options) {
  RETURN_IF_ERROR(options.files->Open());
  ASSIGN_OR_RETURN(const std::unique_ptr<PostgresConnection> database, PostgresConnection::Open(options.address));
  RETURN_IF_ERROR(MigratePostgresSchema(*database, kSchemaVersion));
  RETURN_IF_ERROR(CheckNothingIsMissing(options, *database));
  ASSIGN_OR_RETURN(RecordIds ids, ReadRecordIds(*database));
  ASSIGN_OR_RETURN(const absl::Time now, DatabaseTime(*database));
  ASSIGN_OR_RETURN(const absl::Time newest, NewestTime(*database));
  ASSIGN_OR_RETURN(const absl::Duration running, ReadRunningTime(*database));
  std::unique_ptr<PostgresJobStore> store(
      new PostgresJobStore(options, {.ids = std::move(ids), .now = now, .newest = newest, .running = running}));
  RETURN_IF_ERROR(store->Begin());
  return store;
}

absl::Status PostgresJobStore::Begin() {
  RETURN_IF_ERROR(Read([this](PostgresConnection& database) -> absl::Status {
    ASSIGN_OR_RETURN(result_bytes_, ResultBytes(database));
    return absl::OkStatus();
  }));
  RETURN_IF_ERROR(Change("renew", [this](PostgresConnection& database) {
    return RenewLease(database, server_, options_.name, options_.lease);
  }));
  ASSIGN_OR_RETURN(const TakenBack taken, TakeBack("recover"));
  recovered_.given_back = taken.tasks;
  link_ = std::make_unique<PostgresLink>(
      options_.address, server_, options_.lease / kRenewalsOfALease,
      PostgresLinkHooks{.check = [this](PostgresConnection& database) { return CheckSecret(database, ids_); },
                        .renew = [this] { Renew(); },
                        .changed = [this](const std::vector<uint64_t>& jobs) { NotifyObserver(jobs); },
                        .compare = [this] { Compare(); },
                        .cut = [this](const absl::Status& cut) { OnFailure(cut); }});
  submissions_ = std::make_unique<base::TaskPool>(kSubmissionThreads);
  link_->Start();
  link_->Notify(taken.jobs);
  return absl::OkStatus();
}

PostgresJobStore::~PostgresJobStore() {
  submissions_.reset();
  if (link_ == nullptr) return;
  pool_
      .With([this](PostgresConnection& database) -> absl::Status {
        // A killed process loses the running time since its last renewal, so that everything is kept longer by that
        // time.
        RETURN_IF_ERROR(ShareTime(database).status());
        return EndLease(database, server_);
      })
      .IgnoreError();
  link_->Stop();
}

void PostgresJobStore::OnFailure(const absl::Status& failure) const {
  switch (failure.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kFailedPrecondition:  // the password file
      return disk_.health().Fail(StorageState::kUnreachable, failure);
    case absl::StatusCode::kResourceExhausted:
      return disk_.health().Fail(StorageState::kFull, failure);
    case absl::StatusCode::kDataLoss:
      return disk_.health().Fail(StorageState::kDamaged, failure);
    default:
      return;
  }
}

absl::Status PostgresJobStore::TryChange(const char* name, Call apply, bool& was_tried, bool& in_doubt) {
  was_tried = false;
  absl::Status refused;  // the store's refusal, not an error of the database
  absl::Status status = pool_.With([&](PostgresConnection& database) -> absl::Status {
    was_tried = true;
    RETURN_IF_ERROR(database.Run("BEGIN"));
    Reach(options_.at_point, absl::StrCat(name, ".begin"));
    absl::Status applied = apply(database);
    if (!applied.ok()) {
      database.Run("ROLLBACK").IgnoreError();
      const bool is_ours = absl::IsFailedPrecondition(applied) || absl::IsNotFound(applied) ||
                           absl::IsAlreadyExists(applied) || absl::IsInvalidArgument(applied);
      if (!is_ours) return applied;
      refused = std::move(applied);
      return absl::OkStatus();
    }
    Reach(options_.at_point, absl::StrCat(name, ".before_commit"));
    absl::Status committed = database.Commit();
    if (database.is_lost()) in_doubt = true;
    if (committed.ok()) Reach(options_.at_point, absl::StrCat(name, ".after_commit"));
    return committed;
  });
  return status.ok() ? refused : status;
}

absl::Status PostgresJobStore::Change(const char* name, Call apply) {
  const absl::Duration deadline = base::SteadyNow() + kDoubtTimeout;
  bool in_doubt = false;
  for (int meetings = 0, losses = 0;;) {
    bool was_tried = false;
    absl::Status status = TryChange(name, apply, was_tried, in_doubt);
    if (absl::IsAborted(status) && ++meetings < kMostMeetings) continue;
    if (absl::IsAborted(status)) status = absl::UnavailableError(status.message());
    if (absl::IsUnavailable(status)) {
      // A connection may have been lost long before its next use. A lost database gives no new one.
      if (was_tried && ++losses < kMostLosses) continue;
      if (in_doubt && base::SteadyNow() < deadline) {
        absl::SleepFor(kDoubtPause);
        continue;
      }
    }
    OnFailure(absl::IsFailedPrecondition(status) ? absl::OkStatus() : status);
    return status;
  }
}

absl::Status PostgresJobStore::Read(Call call) const {
  absl::Status status;
  for (int tries = 0; tries < kMostLosses; ++tries) {
    bool was_tried = false;
    status = pool_.With([&](PostgresConnection& database) {
      was_tried = true;
      return call(database);
    });
    if (!absl::IsUnavailable(status) || !was_tried) break;
  }
  if (absl::IsUnavailable(status)) OnFailure(status);
  return status;
}

absl::Status PostgresJobStore::End(const char* name, const TaskAttempt& attempt, const TaskMove& move, int64_t bytes,
                                   absl::FunctionRef<bool(const OwnedTask&)> is_done, const KeyUsage& usage) {
  std::vector<uint64_t> job;
  absl::Status status = Change(name, [&](PostgresConnection& database) -> absl::Status {
    ASSIGN_OR_RETURN(const OwnedTask task, LockTask(database, attempt.task));
    job = {task.row.job};
    const bool is_ours = task.owner == server_ && task.row.attempt == attempt.attempt;
    if (is_ours && task.row.state == move.to && is_done(task)) return absl::OkStatus();
    if (!base::Planted("report_without_its_attempt")) RETURN_IF_ERROR(CheckAttempt(task, attempt, server_));
    RETURN_IF_ERROR(MoveTask(database, sharing_, task.row, move, {.bytes = bytes}));
    return AddUsageRow(database, move.now, server_, usage);  // last, because others may wait for the row
  });
  if (status.ok()) link_->Notify(job);
  return status;
}

std::optional<absl::Time> PostgresJobStore::ExpiryOf(const JobRecord& job) const {
  if (!job.kept_until) return std::nullopt;
  return time_.CalendarAt(*job.kept_until);
}

absl::StatusOr<absl::Duration> PostgresJobStore::ShareTime(PostgresConnection& database) {
  const absl::Duration measured = absl::Floor(time_.Running(), absl::Microseconds(1));
  ASSIGN_OR_RETURN(const absl::Duration running, ShareRunningTime(database, server_, measured));
  if (running != measured) time_.SetRunning(running);
  return running;
}

absl::StatusOr<Recovery> PostgresJobStore::Recover(absl::FunctionRef<void(const QueuedTask&)> visit) {
  Recovery recovery = recovered_;
  QueueTimes times(Calendar());
  std::vector<std::pair<uint64_t, absl::Status>> damaged;
  uint64_t after = 0;
  for (bool last = false; !last;) {
    std::vector<StoredTask> queue;
    RETURN_IF_ERROR(Read([&](PostgresConnection& database) -> absl::Status {
      ASSIGN_OR_RETURN(queue, ReadQueue(database, after, kQueueBatch));
      return absl::OkStatus();
    }));
    last = queue.size() < static_cast<size_t>(kQueueBatch);
    for (const StoredTask& stored : queue) {
      const QueueEntry& row = stored.row;
      after = row.task.number;
      if (!row.request.ok()) {
        damaged.emplace_back(row.task.number, row.request);
        continue;
      }
      ++recovery.queued;
      QueuedTask task = QueuedTaskOf(stored, ids_);
      times.Correct(task);
      visit(task);
    }
  }
  for (const auto& [task, error] : damaged) {
    absl::Status failed = FailQueued(task, error);
    if (!failed.ok() && !absl::IsFailedPrecondition(failed)) return failed;
    ++recovery.damaged;
  }
  return recovery;
}

void PostgresJobStore::Observe(QueueObserver* observer) {
  {
    const std::lock_guard lock(observer_mutex_);
    observer_ = observer;
  }
  link_->Compare();
}

absl::StatusOr<SubmittedJob> PostgresJobStore::Keep(NewJob new_job) {
  const std::string tenant = new_job.tenant;
  const std::optional<IdempotencyKey> key = new_job.idempotency;
  ASSIGN_OR_RETURN(PreparedJob job, PrepareJob(std::move(new_job), Calendar()));
  bool is_known = false;
  absl::Status kept = Change("submit", [&](PostgresConnection& database) -> absl::Status {
    is_known = false;
    if (job.row.number == 0) {
      ASSIGN_OR_RETURN(job.row.number, TakeNumber(database));
    }
    ASSIGN_OR_RETURN(const bool is_new, InsertJob(database, job.row));
    // No other job has this token: an earlier call has committed it together with its key.
    if (!is_new || job.key_hash.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const bool is_new_key, InsertIdempotencyKey(database, job.row, job.key_hash, job.key_digest));
    is_known = !is_new_key;
    return is_known ? absl::AlreadyExistsError("the key is known") : absl::OkStatus();
  });
  if (is_known && absl::IsAlreadyExists(kept)) {
    ASSIGN_OR_RETURN(std::optional<JobRecord> earlier, FindSubmission(tenant, *key));
    if (earlier.has_value()) return SubmittedJob{.job = *std::move(earlier), .existed = true};
    return absl::UnavailableError("the job with this idempotency key is being deleted; try again");
  }
  if (!kept.ok()) return kept;
  link_->Notify({job.row.number});
  return SubmittedJob{.job = RecordOf(std::move(job), ids_)};
}

absl::StatusOr<SubmittedJob> PostgresJobStore::Submit(const NewJob& job) { return Keep(job); }

void PostgresJobStore::SubmitAsync(NewJob job, std::function<void(absl::StatusOr<SubmittedJob>)> done) {
  submissions_->Post(
      [this, job = std::make_shared<NewJob>(std::move(job)), done = std::move(done)] { done(Keep(std::move(*job))); });
}

absl::StatusOr<std::optional<JobRecord>> PostgresJobStore::FindSubmission(const std::string& tenant,
                                                                          const IdempotencyKey& key) {
  std::optional<JobRecord> job;
  RETURN_IF_ERROR(Read([&](PostgresConnection& database) -> absl::Status {
    job = std::nullopt;
    ASSIGN_OR_RETURN(const std::optional<KnownKey> known,
                     FindIdempotencyKey(database, tenant, HashOfKey(tenant, key.key)));
    if (!known.has_value()) return absl::OkStatus();
    if (known->digest != key.digest) return UsedKeyError();
    ASSIGN_OR_RETURN(std::vector<JobRecord> jobs, ReadJobs(database, ids_, server_, {known->job}));
    if (!jobs.empty()) job = std::move(jobs[0]);
    return absl::OkStatus();
  }));
  return job;
}

absl::StatusOr<ClaimedTask> PostgresJobStore::Claim(uint64_t task) {
  ClaimedTask claimed;
  absl::Status damage;
  uint64_t job = 0;
  bool others = false;
  const auto claim = [&](PostgresConnection& database) -> absl::Status {
    damage = absl::OkStatus();
    others = false;
    RETURN_IF_ERROR(HoldLease(database, server_, options_.name, options_.lease));
    ASSIGN_OR_RETURN(const OwnedTask found, LockTask(database, task));
    const TaskRow& row = found.row;
    job = row.job;
    const bool is_made = row.state == TaskState::kRunning && found.owner == server_ &&
                         claims_in_doubt_.Contains({.task = task, .attempt = row.attempt});
    if (!is_made && row.state != TaskState::kQueued) {
      others = found.owner != server_;
      return CheckMove(row.state, TaskState::kRunning);
    }
    const absl::StatusOr<std::string> request = ReadRequest(database, row.job);
    if (!request.ok() && !absl::IsDataLoss(request.status())) return request.status();
    absl::StatusOr<StoredJob> stored = request.ok() ? ParseStoredJob(*request) : request.status();
    if (!stored.ok()) {
      damage = stored.status();
      return MoveTask(database, sharing_, row, MoveToFailed(damage));
    }
    claimed = {.claim = {.task = task, .attempt = row.attempt + (is_made ? 0 : 1)},
               .parameters = stored->request.parameters};
    claimed.parameters.seed += task - row.job;
    if (is_made) return absl::OkStatus();
    claims_in_doubt_.Begin(claimed.claim);
    return MoveTask(database, sharing_, row, MoveTo(TaskState::kRunning), {.owner = server_});
  };
  absl::Status status = Change("claim", claim);
  if (!absl::IsUnavailable(status)) claims_in_doubt_.End(task);
  if (others) {
    link_->LookAt(job);
    return absl::AbortedError(status.message());
  }
  if (!status.ok()) return status;
  link_->Notify({job});
  if (!damage.ok()) return damage;
  return claimed;
}

absl::Status PostgresJobStore::Finish(const TaskAttempt& attempt, const std::string& file, const ImageOrigin& origin) {
  RETURN_IF_ERROR(CheckImageBytes(file, options_.max_image_bytes));
  ASSIGN_OR_RETURN(const TaskMove move, WithImage(MoveTo(TaskState::kDone), attempt, file, origin));
  const std::string name = ResultFileName(attempt);
  const auto is_done = [&](const OwnedTask& task) { return task.image == move.image; };
  // No file is written or replaced for an attempt that was given back.
  bool is_kept = false;
  RETURN_IF_ERROR(Read([&](PostgresConnection& database) -> absl::Status {
    ASSIGN_OR_RETURN(const OwnedTask task, FindOwnedTask(database, attempt.task));
    is_kept = task.row.state == TaskState::kDone && task.row.attempt == attempt.attempt && task.owner == server_ &&
              is_done(task);
    return is_kept ? absl::OkStatus() : CheckAttempt(task, attempt, server_);
  }));
  if (is_kept) return absl::OkStatus();
  Reach(options_.at_point, "finish.before_file");
  RETURN_IF_ERROR(disk_.Write(name, file));
  Reach(options_.at_point, "finish.after_file");
  const int64_t bytes = static_cast<int64_t>(file.size());
  absl::Status status = End("finish", attempt, move, bytes, is_done, origin.usage);
  if (status.ok()) result_bytes_ += bytes;
  // The attempt was given back meanwhile; its file's name belongs to this attempt alone.
  if (absl::IsFailedPrecondition(status) || absl::IsNotFound(status)) disk_.Remove(name);
  return status;
}

// A commit whose answer was lost may be counted twice; finished images are never.
absl::Status PostgresJobStore::AddUsage(const KeyUsage& usage) {
  return Change("usage",
                [&](PostgresConnection& database) { return AddUsageRow(database, Calendar(), server_, usage); });
}

absl::StatusOr<std::vector<DayUsage>> PostgresJobStore::Usage(const UsageQuery& query) {
  std::vector<DayUsage> rows;
  RETURN_IF_ERROR(Read([&](PostgresConnection& database) -> absl::Status {
    ASSIGN_OR_RETURN(rows, ReadUsageRows(database, query));
    return absl::OkStatus();
  }));
  return rows;
}

absl::Status PostgresJobStore::Fail(const TaskAttempt& attempt, const absl::Status& error, const KeyUsage& usage) {
  const TaskMove move = MoveToFailed(error);
  return End(
      "fail", attempt, move, 0, [&](const OwnedTask& task) { return task.error == move.error; }, usage);
}

absl::Status PostgresJobStore::FailQueued(uint64_t task, const absl::Status& error) {
  std::vector<uint64_t> job;
  absl::Status status = Change("fail_queued", [&](PostgresConnection& database) -> absl::Status {
    ASSIGN_OR_RETURN(const OwnedTask found, LockTask(database, task));
    job = {found.row.job};
    RETURN_IF_ERROR(CheckQueued(found.row.state));
    return MoveTask(database, sharing_, found.row, MoveToFailed(error));
  });
  if (status.ok()) link_->Notify(job);
  return status;
}

absl::Status PostgresJobStore::GiveBack(absl::Span<const TaskAttempt> attempts) {
  std::vector<uint64_t> jobs;
  absl::Status status = Change("give_back", [&](PostgresConnection& database) {
    jobs.clear();
    return VisitLocked(database, attempts, [&](const TaskAttempt& attempt, const OwnedTask& task) {
      if (!CheckAttempt(task, attempt, server_).ok()) return absl::OkStatus();  // it ended, or another server has it
      jobs.push_back(task.row.job);
      return MoveTask(database, sharing_, task.row, MoveTo(TaskState::kQueued));
    });
  });
  if (status.ok()) link_->Notify(jobs);
  return status;
}

absl::StatusOr<std::vector<Verdict>> PostgresJobStore::GroupDied(absl::Span<const TaskAttempt> attempts,
                                                                 const std::string& reason) {
  std::vector<uint64_t> jobs;
  std::vector<Verdict> verdicts;
  const auto judge = [&](PostgresConnection& database) {
    verdicts.clear();
    jobs.clear();
    return VisitLocked(database, attempts, [&](const TaskAttempt& attempt, const OwnedTask& task) {
      Verdict& verdict =
          verdicts.emplace_back(Verdict{.attempt = attempt, .state = task.row.state, .blame = task.row.blame});
      if (!CheckAttempt(task, attempt, server_).ok()) return absl::OkStatus();
      const TaskMove move = WithDeath(MoveTo(TaskState::kQueued), task.row.blame, attempts.size() == 1, reason);
      verdict.state = move.to;
      verdict.blame = *move.blame;
      jobs.push_back(task.row.job);
      return MoveTask(database, sharing_, task.row, move);
    });
  };
  RETURN_IF_ERROR(Change("group_died", judge));
  link_->Notify(jobs);
  return verdicts;
}

absl::StatusOr<JobRecord> PostgresJobStore::Cancel(const std::string& tenant, const std::string& job) {
  ASSIGN_OR_RETURN(const uint64_t number, ids_.JobNumber(job));
  JobRecord record;
  const auto cancel = [&](PostgresConnection& database) -> absl::Status {
    ASSIGN_OR_RETURN(const JobRecord before, ReadJob(database, ids_, server_, tenant, job));
    std::vector<uint64_t> tasks;
    for (const TaskRecord& task : before.tasks) tasks.push_back(task.id);
    RETURN_IF_ERROR(LockJobs(database, tasks));
    for (const uint64_t task : tasks) {
      ASSIGN_OR_RETURN(const OwnedTask found, FindOwnedTask(database, task));
      if (IsEnded(found.row.state)) continue;
      RETURN_IF_ERROR(MoveTask(database, sharing_, found.row, MoveTo(TaskState::kCancelled)));
    }
    ASSIGN_OR_RETURN(record, ReadJob(database, ids_, server_, tenant, job));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(Change("cancel", cancel));
  link_->Notify({number});
  return record;
}

absl::StatusOr<JobRecord> PostgresJobStore::Get(const std::string& tenant, const std::string& job) {
  JobRecord record;
  RETURN_IF_ERROR(Read([&](PostgresConnection& database) -> absl::Status {
    ASSIGN_OR_RETURN(record, ReadJob(database, ids_, server_, tenant, job));
    return absl::OkStatus();
  }));
  return record;
}

absl::StatusOr<JobRecordPage> PostgresJobStore::List(const std::string& tenant, int32_t limit, const std::string& after,
                                                     std::optional<JobState> state) {
  ASSIGN_OR_RETURN(const uint64_t before, BeginOfPage(ids_, limit, after));
  JobRecordPage page;
  RETURN_IF_ERROR(Read([&](PostgresConnection& database) -> absl::Status {
    page = {};
    ASSIGN_OR_RETURN(std::vector<uint64_t> numbers, ListJobs(database, tenant, state, before, limit + 1));
    if (static_cast<int32_t>(numbers.size()) > limit) {
      numbers.pop_back();
      page.next = ids_.PageId(numbers.back());
    }
    ASSIGN_OR_RETURN(page.jobs, ReadJobs(database, ids_, server_, numbers));
    return absl::OkStatus();
  }));
  // A job may have moved on meanwhile, and a damaged one appears as failed.
  if (state.has_value()) std::erase_if(page.jobs, [&](const JobRecord& job) { return StateOf(job) != *state; });
  return page;
}

absl::StatusOr<base::SharedBytes> PostgresJobStore::OpenImage(const std::string& tenant, const std::string& image) {
  ASSIGN_OR_RETURN(const uint64_t number, ids_.ImageNumber(image));
  std::vector<JobRecord> jobs;
  RETURN_IF_ERROR(Read([&](PostgresConnection& database) -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, JobsOf(database, {number}));
    ASSIGN_OR_RETURN(jobs, ReadJobs(database, ids_, server_, numbers));
    return absl::OkStatus();
  }));
  if (jobs.empty()) return NoSuchImage();
  return disk_.OpenImage(jobs[0], tenant, image, /*committed=*/nullptr, options_.max_image_bytes);
}

absl::StatusOr<SweepReport> PostgresJobStore::Sweep(int64_t limit) {
  SweepReport report;
  std::vector<JobRecord> gone;
  int64_t bytes = 0;
  bool is_mine = false;
  const int64_t today = UsageDayOf(Calendar());
  const auto sweep = [&](PostgresConnection& database) -> absl::Status {
    report = {};
    gone.clear();
    // One server at a time decides which jobs exceed the bound.
    ASSIGN_OR_RETURN(const PostgresRows mine, database.Query("SELECT pg_try_advisory_xact_lock(8386105380344915234)"));
    is_mine = mine.Int(0, 0) != 0;
    if (!is_mine) return absl::OkStatus();
    if (today != usage_swept_) RETURN_IF_ERROR(RemoveOldUsage(database));
    ASSIGN_OR_RETURN(const absl::Duration running, ShareTime(database));
    RETURN_IF_ERROR(KeepOthersJobs(database, sharing_, MoveTo(TaskState::kDone)));
    ASSIGN_OR_RETURN(std::vector<uint64_t> numbers, LockExpired(database, running, limit));
    ASSIGN_OR_RETURN(gone, ReadJobs(database, ids_, server_, numbers));
    report.jobs = static_cast<int64_t>(numbers.size());
    ASSIGN_OR_RETURN(bytes, ResultBytes(database));
    for (const JobRecord& job : gone) bytes -= ImageBytesOf(job);
    const int64_t bound = options_.retention_bytes;
    if (bound > 0 && bytes > bound) {
      RETURN_IF_ERROR(DeleteJobs(database, numbers));
      ASSIGN_OR_RETURN(const std::vector<uint64_t> oldest, LockEnded(database, limit + 1));
      for (size_t i = 0; i + 1 < oldest.size() && bytes > bound; ++i) {
        ASSIGN_OR_RETURN(std::vector<JobRecord> job, ReadJobs(database, ids_, server_, {oldest[i]}));
        if (job.empty()) continue;
        bytes -= ImageBytesOf(job[0]);
        numbers.push_back(oldest[i]);
        gone.push_back(std::move(job[0]));
        ++report.oldest;
      }
    }
    return DeleteJobs(database, numbers);
  };
  if (absl::Status status = Change("sweep", sweep); !status.ok()) {
    bytes_after_sweep_ = result_bytes_.load();
    return status;
  }
  if (is_mine) usage_swept_ = today;
  if (!gone.empty()) result_bytes_ = bytes;
  bytes_after_sweep_ = report.oldest > 0 ? -1 : result_bytes_.load();
  Reach(options_.at_point, "sweep.before_files");
  for (const JobRecord& job : gone) {
    for (const TaskRecord& task : job.tasks) {
      if (task.image) disk_.Remove(task.image->file);
    }
  }
  report.orphans = RemoveOrphans();
  return report;
}

int64_t PostgresJobStore::RemoveOrphans() {
  const absl::StatusOr<std::vector<std::string>> candidates = disk_.TakeCandidates();
  if (!candidates.ok()) return 0;  // a later sweep looks for them again
  int64_t orphans = 0;
  const absl::Duration now = options_.clock->Elapsed();
  std::vector<std::string> old;
  {
    // Another server may still be writing a temporary file; one that stays was left by a killed server.
    const std::lock_guard lock(temporaries_mutex_);
    for (const std::string& file : *candidates) {
      if (absl::StrContains(file, kTemporaryMark)) old_temporaries_.emplace(file, now);
    }
    std::erase_if(old_temporaries_, [&](const auto& file) {
      if (now - file.second < kOldTemporary) return false;
      old.push_back(file.first);
      return true;
    });
  }
  for (const std::string& file : old) disk_.Remove(file);
  for (const std::string& file : *candidates) {
    if (absl::StrContains(file, kTemporaryMark) || IsWanted(file)) continue;
    disk_.Remove(file);
    ++orphans;
  }
  return orphans;
}

bool PostgresJobStore::IsWanted(const std::string& file) const {
  const std::optional<TaskAttempt> attempt = AttemptOfFile(file);
  if (!attempt) return file == kTrialFile;  // another server may be probing the disk
  bool is_wanted = true;                    // a file is kept if its task cannot be read
  Read([&](PostgresConnection& database) -> absl::Status {
    const absl::StatusOr<OwnedTask> task = FindOwnedTask(database, attempt->task);
    if (absl::IsNotFound(task.status())) {
      is_wanted = false;
      return absl::OkStatus();
    }
    if (!task.ok()) return task.status();
    is_wanted = task->row.attempt == attempt->attempt &&
                (task->row.state == TaskState::kRunning || task->row.state == TaskState::kDone);
    return absl::OkStatus();
  }).IgnoreError();
  return is_wanted;
}

std::array<int64_t, kTaskStates> PostgresJobStore::Counts() const {
  StateCounts counts{};
  Read([&](PostgresConnection& database) -> absl::Status {
    ASSIGN_OR_RETURN(counts, CountStates(database));
    return absl::OkStatus();
  }).IgnoreError();
  return counts;
}

bool PostgresJobStore::has_too_many_bytes() const {
  const int64_t bytes = result_bytes_, bound = options_.retention_bytes;
  return bound > 0 && bytes > bound && bytes != bytes_after_sweep_;
}

absl::Status PostgresJobStore::TryWrite() {
  const std::lock_guard lock(trial_mutex_);
  const int64_t failures = disk_.health().failures();
  absl::Status tried = Change("try_write", [this](PostgresConnection& database) {
    return RenewLease(database, server_, options_.name, options_.lease);
  });
  if (tried.ok()) tried = disk_.TryRoom();
  if (!tried.ok()) return tried;
  disk_.health().Recover(failures);
  const StorageTrouble left = disk_.health().trouble();
  return left.state == StorageState::kDamaged ? left.failure : absl::OkStatus();
}

absl::StatusOr<TakenBack> PostgresJobStore::TakeBack(const char* name) {
  TakenBack taken;
  RETURN_IF_ERROR(Change(name, [&](PostgresConnection& database) -> absl::Status {
    ASSIGN_OR_RETURN(taken, TakeBackExpired(database, sharing_));
    return absl::OkStatus();
  }));
  return taken;
}

void PostgresJobStore::GiveBackDoubtful() {
  const std::vector<TaskAttempt> attempts = claims_in_doubt_.OlderThan(kOldDoubt);
  if (attempts.empty() || !GiveBack(attempts).ok()) return;
  for (const TaskAttempt& attempt : attempts) claims_in_doubt_.End(attempt);
}

void PostgresJobStore::Renew() {
  const absl::Status renewed = Change("renew", [this](PostgresConnection& database) -> absl::Status {
    RETURN_IF_ERROR(ShareTime(database).status());  // before an expired lease is renewed
    ASSIGN_OR_RETURN(const absl::Time now, DatabaseTime(database));
    time_.Follow(now);
    if (base::Planted("lease_on_local_time")) {
      return database.Run("UPDATE servers SET expires = to_timestamp($1::bigint)", {absl::ToUnixSeconds(Now())});
    }
    return RenewLease(database, server_, options_.name, options_.lease);
  });
  if (!renewed.ok()) return;
  GiveBackDoubtful();
  const absl::StatusOr<TakenBack> taken = TakeBack("take_back");
  if (!taken.ok() || taken->jobs.empty()) return;
  link_->Notify(taken->jobs);
  NotifyObserver(taken->jobs);
}

void PostgresJobStore::NotifyObserver(const std::vector<uint64_t>& jobs) {
  const std::lock_guard lock(observer_mutex_);
  if (observer_ == nullptr) return;
  std::vector<JobRecord> records;
  const absl::Status read = Read([&](PostgresConnection& database) -> absl::Status {
    ASSIGN_OR_RETURN(records, ReadJobs(database, ids_, server_, jobs));
    return absl::OkStatus();
  });
  if (!read.ok()) return link_->Compare();
  for (const JobRecord& record : records) observer_->OnChanged(record);
}

void PostgresJobStore::Compare() {
  std::vector<OpenTask> open;
  const absl::Status read = Read([&](PostgresConnection& database) -> absl::Status {
    ASSIGN_OR_RETURN(open, ListOpen(database, server_));
    ASSIGN_OR_RETURN(result_bytes_, ResultBytes(database));
    return absl::OkStatus();
  });
  if (!read.ok()) return;  // the link is lost, and compares after it reconnects
  std::vector<uint64_t> others, jobs;
  {
    const std::lock_guard lock(observer_mutex_);
    if (observer_ == nullptr) return;
    others = observer_->Compare(open);
    if (others.empty()) return;
    std::vector<uint64_t> known;
    const absl::Status found = Read([&](PostgresConnection& database) -> absl::Status {
      ASSIGN_OR_RETURN(known, KnownTasks(database, others));
      ASSIGN_OR_RETURN(jobs, JobsOf(database, others));
      return absl::OkStatus();
    });
    if (!found.ok()) return;
    std::ranges::sort(known);
    for (const uint64_t task : others) {
      if (!std::ranges::binary_search(known, task)) observer_->OnGone(task);
    }
  }
  for (size_t first = 0; first < jobs.size(); first += kQueueBatch) {
    const size_t end = std::min(jobs.size(), first + kQueueBatch);
    NotifyObserver(
        {jobs.begin() + static_cast<std::ptrdiff_t>(first), jobs.begin() + static_cast<std::ptrdiff_t>(end)});
  }
}

}  // namespace tessera::server
