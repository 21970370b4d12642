#include "server/jobs/sqlite_job_store.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files/private_files.h"
#include "base/macros/status_macros.h"
#include "server/api/job.h"
#include "server/jobs/job_submission.h"
#include "server/jobs/new_job.h"
#include "server/jobs/queue_reader.h"
#include "server/jobs/result_names.h"
#include "server/jobs/schema.h"
#include "server/jobs/store_report.h"
#include "server/jobs/stored_job.h"
#include "server/jobs/stored_task.h"
#include "server/jobs/usage_rows.h"

namespace tessera::server {
namespace {

absl::Status WithAdvice(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(status.message(), "; ", kStoreAdvice));
}

// Returns the open files; files of another file layer have no folder.
StoragePlace PlaceOf(const SqliteJobStoreOptions& options) {
  StoragePlace place;
  if (!options.vfs.empty()) return place;
  for (const char* suffix : {"", "-wal", ".lock"}) place.Remember(options.path + suffix);
  return place;
}

}  // namespace

SqliteJobStore::SqliteJobStore(const SqliteJobStoreOptions& options, Opened opened)
    : options_(options),
      lock_(std::move(opened.lock)),
      time_(*options.clock, opened.now, opened.running),
      disk_(*options.files, PlaceOf(options), *options.clock, options.on_storage),
      reader_(std::move(opened.reader)),
      ids_(std::move(opened.ids)),
      next_number_(opened.next_number),
      recovered_(opened.recovery),
      result_bytes_(opened.result_bytes),
      commit_(std::move(opened.writer),
              {.at_point = options.at_point,
               .may_write = [this] { return disk_.CheckPlace(); },
               .failed = [this](const absl::Status& failure) { disk_.OnDatabaseFailure(failure); }}) {
  Count(opened.counts);
}

SqliteJobStore::~SqliteJobStore() {
  // A killed process loses the running time since its last sweep, so that its jobs are kept longer by that time.
  commit_.Run("running_time", [this](SqliteDatabase& database) { return KeepRunningTime(database, time_.Running()); })
      .IgnoreError();
}

absl::StatusOr<std::unique_ptr<JobStore>> SqliteJobStore::Open(const SqliteJobStoreOptions& options) {
  base::ProcessLock lock;
  if (options.vfs.empty()) {
    absl::StatusOr<base::ProcessLock> taken = base::ProcessLock::Take(options.path + ".lock", options.timeout);
    if (absl::IsFailedPrecondition(taken.status())) {
      return absl::FailedPreconditionError(
          absl::StrCat("another process uses this job store: ", std::string(taken.status().message()),
                       "; give each server a different data folder"));
    }
    if (!taken.ok()) return taken.status();
    lock = *std::move(taken);
  }
  RETURN_IF_ERROR(options.files->Open());
  if (options.vfs.empty()) {
    if (absl::Status missing = CheckNothingIsMissing(options.path, *options.files); !missing.ok())
      return WithAdvice(missing);
    RETURN_IF_ERROR(base::MakePrivateFile(options.path));
  }
  const SqliteDatabase::Options file = {.path = options.path, .vfs = options.vfs};
  absl::StatusOr<std::unique_ptr<SqliteDatabase>> writer = SqliteDatabase::Open(file);
  absl::Status sound = writer.ok() ? (*writer)->Check() : writer.status();
  if (!sound.ok()) return absl::IsDataLoss(sound) ? WithAdvice(sound) : sound;
  RETURN_IF_ERROR(MigrateSchema(**writer, kSchemaVersion));
  absl::StatusOr<RecordIds> ids = ReadRecordIds(**writer);
  if (!ids.ok()) return absl::IsDataLoss(ids.status()) ? WithAdvice(ids.status()) : ids.status();
  ASSIGN_OR_RETURN(const uint64_t next, NextNumber(**writer));
  if (absl::Status known = CheckImagesAreKnown(next, options.path, *options.files); !known.ok())
    return WithAdvice(known);
  ASSIGN_OR_RETURN(const absl::Time newest, NewestTime(**writer));
  ASSIGN_OR_RETURN(const absl::Duration running, ReadRunningTime(**writer));
  const absl::Time now = options.clock->Now();
  RETURN_IF_ERROR((*writer)->Execute("BEGIN IMMEDIATE"));
  ASSIGN_OR_RETURN(const int64_t given_back, QueueRunning(**writer));
  ASSIGN_OR_RETURN(const FinishedImages finished, FailDamagedImages(**writer, running + options.retention));
  ASSIGN_OR_RETURN(const StateCounts counts, CountStates(**writer, now, running + options.retention));
  Reach(options.at_point, "recover.before_commit");
  RETURN_IF_ERROR((*writer)->Execute("COMMIT"));
  Reach(options.at_point, "recover.after_commit");
  ASSIGN_OR_RETURN(std::unique_ptr<SqliteDatabase> reader, SqliteDatabase::Open(file));
  return std::unique_ptr<JobStore>(new SqliteJobStore(
      options, {.lock = std::move(lock),
                .writer = *std::move(writer),
                .reader = std::move(reader),
                .ids = *std::move(ids),
                .now = now,
                .running = running,
                .next_number = next,
                .recovery = {.given_back = given_back, .damaged = finished.damaged, .newest = newest, .opened = now},
                .counts = counts,
                .result_bytes = finished.bytes}));
}

absl::Status SqliteJobStore::Change(const char* name,
                                    const std::function<absl::Status(SqliteDatabase&, StateCounts&)>& apply,
                                    Durability durability) {
  StateCounts delta{};
  const auto counted = [&](SqliteDatabase& database) {
    delta = {};
    return apply(database, delta);
  };
  absl::Status status = commit_.Run(name, counted, durability);
  if (status.ok()) Count(delta);
  return status;
}

void SqliteJobStore::Count(const StateCounts& delta) {
  for (size_t state = 0; state < delta.size(); ++state) counts_[state] += delta[state];
}

absl::Status SqliteJobStore::End(const char* name, const TaskAttempt& attempt, const TaskMove& move,
                                 const KeyUsage& usage) {
  return Change(name, [&](SqliteDatabase& database, StateCounts& counts) -> absl::Status {
    ASSIGN_OR_RETURN(const TaskRow task, FindAttempt(database, attempt));
    RETURN_IF_ERROR(MoveTask(database, task, move, counts));
    return AddUsageRow(database, move.now, /*shard=*/0, usage);
  });
}

absl::Time SqliteJobStore::Calendar() const {
  time_.Follow(options_.clock->Now());
  return time_.Calendar();
}

std::optional<absl::Time> SqliteJobStore::ExpiryOf(const JobRecord& job) const {
  if (!job.kept_until) return std::nullopt;
  return time_.CalendarAt(*job.kept_until);
}

absl::StatusOr<Recovery> SqliteJobStore::Recover(absl::FunctionRef<void(const QueuedTask&)> visit) {
  Recovery recovery = recovered_;
  ASSIGN_OR_RETURN(const std::vector<std::string> files, options_.files->List());
  for (const std::string& file : files) {
    if (absl::StrContains(file, kTemporaryMark)) disk_.Remove(file);
  }
  std::vector<std::pair<uint64_t, absl::Status>> damaged;
  QueueTimes times(Calendar());
  const auto hand_out = [&](const StoredTask& stored) {
    const QueueEntry& row = stored.row;
    if (!row.request.ok()) {
      damaged.emplace_back(row.task.number, row.request);
      return;
    }
    ++recovery.queued;
    QueuedTask task = QueuedTaskOf(stored, ids_);
    times.Correct(task);
    visit(task);
  };
  RETURN_IF_ERROR(ReadQueue([this](const auto& call) { return Read(call); }, hand_out));
  for (const auto& [task, error] : damaged) {
    RETURN_IF_ERROR(FailQueued(task, error));
    ++recovery.damaged;
  }
  return recovery;
}

void SqliteJobStore::SubmitAsync(NewJob job, std::function<void(absl::StatusOr<SubmittedJob>)> done) {
  const absl::StatusOr<std::shared_ptr<JobSubmission>> made = JobSubmission::Make(std::move(job), Calendar());
  if (!made.ok()) return done(made.status());
  const std::shared_ptr<JobSubmission>& submission = *made;
  const auto apply = [this, submission](SqliteDatabase& database) {
    return submission->Apply(database, ids_, next_number_);
  };
  const auto answer = [this, submission, done = std::move(done)](const absl::Status& status) {
    done(ResultOf(status, *submission));
  };
  commit_.Post({.name = "submit", .apply = apply, .done = answer});
}

absl::StatusOr<SubmittedJob> SqliteJobStore::Submit(const NewJob& job) {
  ASSIGN_OR_RETURN(const std::shared_ptr<JobSubmission> submission, JobSubmission::Make(job, Calendar()));
  const absl::Status status =
      commit_.Run("submit", [&](SqliteDatabase& database) { return submission->Apply(database, ids_, next_number_); });
  return ResultOf(status, *submission);
}

absl::StatusOr<SubmittedJob> SqliteJobStore::ResultOf(const absl::Status& status, JobSubmission& submission) {
  RETURN_IF_ERROR(status);
  Count(submission.counts());
  return submission.TakeResult(ids_);
}

absl::StatusOr<std::optional<JobRecord>> SqliteJobStore::FindSubmission(const std::string& tenant,
                                                                        const IdempotencyKey& key) {
  absl::StatusOr<std::optional<JobRecord>> job =
      Read([&](SqliteDatabase& database) { return ReadSubmission(database, ids_, tenant, key); });
  if (absl::IsNotFound(job.status())) return std::nullopt;  // deleted meanwhile
  return job;
}

bool SqliteJobStore::IsWanted(const std::string& file) {
  const std::optional<TaskAttempt> attempt = AttemptOfFile(file);
  if (!attempt) return false;
  return Read([&](SqliteDatabase& database) {
    const absl::StatusOr<TaskRow> task = FindTask(database, attempt->task);
    // A file is kept if its task cannot be read.
    if (!task.ok()) return !absl::IsNotFound(task.status());
    if (task->attempt != attempt->attempt) return false;
    return task->state == TaskState::kRunning || task->state == TaskState::kDone;
  });
}

absl::StatusOr<ClaimedTask> SqliteJobStore::Claim(uint64_t task) {
  ClaimedTask claimed;
  absl::Status damage;
  const auto claim = [&](SqliteDatabase& database, StateCounts& counts) {
    damage = absl::OkStatus();
    ASSIGN_OR_RETURN(const TaskRow row, FindTask(database, task));
    TaskMove move = MoveTo(TaskState::kRunning);
    RETURN_IF_ERROR(CheckMove(row.state, move.to));
    const absl::StatusOr<std::string> request = ReadRequest(database, row.job);
    if (IsStorageFailure(request.status())) return request.status();
    absl::StatusOr<StoredJob> stored = request.ok() ? ParseStoredJob(*request) : request.status();
    if (stored.ok()) {
      claimed = {.claim = {.task = task, .attempt = row.attempt + 1}, .parameters = stored->request.parameters};
      claimed.parameters.seed += task - row.job;
    } else {
      damage = stored.status();
      move = MoveToFailed(damage);
    }
    return MoveTask(database, row, move, counts);
  };
  // A claim that a power loss undoes is lost together with its worker; the end of the task is synced with it.
  RETURN_IF_ERROR(Change("claim", claim, Durability::kWithTheNextSync));
  if (!damage.ok()) return damage;
  return claimed;
}

absl::Status SqliteJobStore::Finish(const TaskAttempt& attempt, const std::string& file, const ImageOrigin& origin) {
  RETURN_IF_ERROR(CheckImageBytes(file, options_.max_image_bytes));
  ASSIGN_OR_RETURN(const TaskMove move, WithImage(MoveTo(TaskState::kDone), attempt, file, origin));
  absl::Status status = file.size() <= options_.most_committed_bytes
                            ? FinishTogether(attempt, file, move, origin.usage)
                            : FinishWithFile(attempt, file, move, origin.usage);
  if (status.ok()) result_bytes_ += static_cast<int64_t>(file.size());
  return status;
}

absl::Status SqliteJobStore::FinishTogether(const TaskAttempt& attempt, const std::string& bytes, const TaskMove& move,
                                            const KeyUsage& usage) {
  absl::Status status = Change("finish", [&](SqliteDatabase& database, StateCounts& counts) -> absl::Status {
    ASSIGN_OR_RETURN(const TaskRow task, FindAttempt(database, attempt));
    RETURN_IF_ERROR(InsertPicture(database, attempt, bytes));
    RETURN_IF_ERROR(MoveTask(database, task, move, counts));
    return AddUsageRow(database, move.now, /*shard=*/0, usage);
  });
  // The trouble ends only when there is space for such an image again, not just for a row.
  if (absl::IsResourceExhausted(status)) disk_.OnResultFailure(status, bytes.size());
  return status;
}

absl::Status SqliteJobStore::FinishWithFile(const TaskAttempt& attempt, const std::string& bytes, const TaskMove& move,
                                            const KeyUsage& usage) {
  // No file is written or replaced for an attempt that was given back.
  const absl::StatusOr<TaskRow> runs = Read([&](SqliteDatabase& database) { return FindAttempt(database, attempt); });
  if (!runs.ok()) return runs.status();
  const std::string name = ResultFileName(attempt);
  Reach(options_.at_point, "finish.before_file");
  RETURN_IF_ERROR(disk_.Write(name, bytes));
  Reach(options_.at_point, "finish.after_file");
  absl::Status status = End("finish", attempt, move, usage);
  if (absl::IsFailedPrecondition(status) || absl::IsNotFound(status)) disk_.Remove(name);
  return status;
}

absl::Status SqliteJobStore::AddUsage(const KeyUsage& usage) {
  return commit_.Run("usage",
                     [&](SqliteDatabase& database) { return AddUsageRow(database, Calendar(), /*shard=*/0, usage); });
}

absl::StatusOr<std::vector<DayUsage>> SqliteJobStore::Usage(const UsageQuery& query) {
  return Read([&](SqliteDatabase& database) { return ReadUsageRows(database, query); });
}

absl::Status SqliteJobStore::Fail(const TaskAttempt& attempt, const absl::Status& error, const KeyUsage& usage) {
  return End("fail", attempt, MoveToFailed(error), usage);
}

absl::Status SqliteJobStore::FailQueued(uint64_t task, const absl::Status& error) {
  return Change("fail_queued", [&](SqliteDatabase& database, StateCounts& counts) {
    ASSIGN_OR_RETURN(const TaskRow row, FindTask(database, task));
    RETURN_IF_ERROR(CheckQueued(row.state));
    return MoveTask(database, row, MoveToFailed(error), counts);
  });
}

absl::Status SqliteJobStore::GiveBack(absl::Span<const TaskAttempt> attempts) {
  return Change("give_back", [&](SqliteDatabase& database, StateCounts& counts) {
    for (const TaskAttempt& attempt : attempts) {
      const absl::StatusOr<TaskRow> row = FindAttempt(database, attempt);
      if (IsStorageFailure(row.status())) return row.status();
      if (!row.ok()) continue;  // it has ended, or another claim has it
      RETURN_IF_ERROR(MoveTask(database, *row, MoveTo(TaskState::kQueued), counts));
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<Verdict>> SqliteJobStore::GroupDied(absl::Span<const TaskAttempt> attempts,
                                                               const std::string& reason) {
  std::vector<Verdict> verdicts;
  const auto judge = [&](SqliteDatabase& database, StateCounts& counts) -> absl::Status {
    verdicts.clear();
    for (const TaskAttempt& attempt : attempts) {
      const absl::StatusOr<TaskRow> row = FindTask(database, attempt.task);
      if (IsStorageFailure(row.status())) return row.status();
      if (!row.ok()) continue;
      Verdict verdict{.attempt = attempt, .state = row->state, .blame = row->blame};
      if (row->state == TaskState::kRunning && row->attempt == attempt.attempt) {
        const TaskMove move = WithDeath(MoveTo(TaskState::kQueued), row->blame, attempts.size() == 1, reason);
        RETURN_IF_ERROR(MoveTask(database, *row, move, counts));
        verdict.state = move.to;
        verdict.blame = *move.blame;
      }
      verdicts.push_back(verdict);
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(Change("group_died", judge));
  return verdicts;
}

absl::StatusOr<JobRecord> SqliteJobStore::Cancel(const std::string& tenant, const std::string& job) {
  JobRecord record;
  const auto cancel = [&](SqliteDatabase& database, StateCounts& counts) -> absl::Status {
    ASSIGN_OR_RETURN(const JobRecord before, ReadJob(database, ids_, tenant, job));
    for (const TaskRecord& task : before.tasks) {
      if (IsEnded(task.state)) continue;
      ASSIGN_OR_RETURN(const TaskRow row, FindTask(database, task.id));
      RETURN_IF_ERROR(MoveTask(database, row, MoveTo(TaskState::kCancelled), counts));
    }
    ASSIGN_OR_RETURN(record, ReadJob(database, ids_, tenant, job));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(Change("cancel", cancel));
  return record;
}

absl::StatusOr<JobRecord> SqliteJobStore::Get(const std::string& tenant, const std::string& job) {
  return Read([&](SqliteDatabase& database) { return ReadJob(database, ids_, tenant, job); });
}

absl::StatusOr<JobRecordPage> SqliteJobStore::List(const std::string& tenant, int32_t limit, const std::string& after,
                                                   std::optional<JobState> state) {
  ASSIGN_OR_RETURN(const uint64_t before, BeginOfPage(ids_, limit, after));
  return Read([&](SqliteDatabase& database) -> absl::StatusOr<JobRecordPage> {
    ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, ListJobs(database, tenant, state, before, limit + 1));
    JobRecordPage page;
    for (size_t i = 0; i < numbers.size() && static_cast<int32_t>(i) < limit; ++i) {
      absl::StatusOr<JobRecord> job = ReadJob(database, ids_, numbers[i]);
      if (absl::IsNotFound(job.status())) continue;  // deleted meanwhile
      if (!job.ok()) return job.status();
      // A job may have moved on meanwhile, and a damaged one appears as failed.
      if (state.has_value() && StateOf(*job) != *state) continue;
      page.jobs.push_back(*std::move(job));
    }
    if (static_cast<int32_t>(numbers.size()) > limit) page.next = ids_.PageId(numbers[static_cast<size_t>(limit) - 1]);
    return page;
  });
}

// Reads an image that was committed with its task, from the database or, once it was moved, from its file.
class SqliteJobStore::CommittedImage final : public base::ByteSource {
 public:
  CommittedImage(SqliteJobStore& store, const TaskAttempt& attempt, uint64_t size)
      : store_(store), attempt_(attempt), size_(size) {}

  uint64_t size() const override { return size_; }

  absl::StatusOr<std::string> Read(uint64_t offset, size_t count) const override {
    ASSIGN_OR_RETURN(std::optional<std::string> committed, store_.Read([&](SqliteDatabase& database) {
      return ReadPicture(database, attempt_.task, offset, count);
    }));
    if (committed.has_value()) return *std::move(committed);
    ASSIGN_OR_RETURN(const base::SharedBytes file, store_.disk_.OpenFile(ResultFileName(attempt_), size_));
    if (file->size() != size_) return absl::DataLossError("the image's file was changed while it was read");
    return file->Read(offset, count);
  }

 private:
  SqliteJobStore& store_;
  const TaskAttempt attempt_;
  const uint64_t size_;
};

absl::StatusOr<base::SharedBytes> SqliteJobStore::OpenImage(const std::string& tenant, const std::string& image) {
  ASSIGN_OR_RETURN(const uint64_t number, ids_.ImageNumber(image));
  base::SharedBytes committed;
  const absl::StatusOr<JobRecord> job = Read([&](SqliteDatabase& database) -> absl::StatusOr<JobRecord> {
    ASSIGN_OR_RETURN(const TaskRow task, FindTask(database, number));
    ASSIGN_OR_RETURN(JobRecord record, ReadJob(database, ids_, task.job));
    // An image that is no longer in this table has a file.
    ASSIGN_OR_RETURN(const std::optional<uint64_t> size, FindPicture(database, number));
    if (size.has_value()) {
      committed = std::make_shared<CommittedImage>(*this, TaskAttempt{.task = number, .attempt = task.attempt}, *size);
    }
    return record;
  });
  if (absl::IsNotFound(job.status())) return NoSuchImage();
  if (!job.ok()) return job.status();
  return disk_.OpenImage(*job, tenant, image, committed, options_.max_image_bytes);
}

absl::StatusOr<int64_t> SqliteJobStore::SettleImages(int64_t limit) {
  const std::lock_guard lock(settle_mutex_);
  ASSIGN_OR_RETURN(const std::vector<PictureRow> pictures,
                   Read([&](SqliteDatabase& database) { return ListPictures(database, limit); }));
  if (pictures.empty()) return 0;
  std::vector<ResultFile> files;
  for (const PictureRow& picture : pictures) files.push_back({ResultFileName(picture.attempt), picture.bytes});
  Reach(options_.at_point, "settle.before_files");
  RETURN_IF_ERROR(disk_.WriteAll(files));
  Reach(options_.at_point, "settle.after_files");
  std::vector<std::string> unwanted;
  const auto settle = [&](SqliteDatabase& database, StateCounts&) -> absl::Status {
    unwanted.clear();
    for (size_t i = 0; i < pictures.size(); ++i) {
      ASSIGN_OR_RETURN(const bool was_there, DeletePicture(database, pictures[i].attempt.task));
      if (!was_there) unwanted.push_back(files[i].name);  // its job was swept meanwhile
    }
    return absl::OkStatus();
  };
  // If a power loss restores the row, the image's file exists too.
  RETURN_IF_ERROR(Change("settle", settle, Durability::kWithTheNextSync));
  for (const std::string& name : unwanted) disk_.Remove(name);
  return static_cast<int64_t>(pictures.size());
}

absl::StatusOr<SweepReport> SqliteJobStore::Sweep(int64_t limit) {
  SweepReport report;
  std::vector<JobRecord> gone;
  int64_t gone_bytes = 0;
  const int64_t today = UsageDayOf(Calendar());
  const auto sweep = [&](SqliteDatabase& database, StateCounts& counts) {
    report = {};
    gone.clear();
    gone_bytes = 0;
    const auto remove = [&](uint64_t number) {
      ASSIGN_OR_RETURN(JobRecord job, ReadJob(database, ids_, number));
      gone_bytes += ImageBytesOf(job);
      gone.push_back(std::move(job));
      return DeleteJob(database, gone.back(), counts);
    };
    const absl::Duration running = time_.Running();
    RETURN_IF_ERROR(KeepRunningTime(database, running));
    if (today != usage_swept_) RETURN_IF_ERROR(RemoveOldUsage(database));
    ASSIGN_OR_RETURN(const std::vector<uint64_t> expired, ListExpired(database, running, limit));
    for (uint64_t number : expired) {
      RETURN_IF_ERROR(remove(number));
      ++report.jobs;
    }
    const int64_t bound = options_.retention_bytes;
    const auto is_too_much = [&] { return bound > 0 && result_bytes_ - gone_bytes > bound; };
    if (!is_too_much()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::vector<uint64_t> oldest, ListEnded(database, limit + 1));
    for (size_t i = 0; i + 1 < oldest.size() && is_too_much(); ++i) {
      RETURN_IF_ERROR(remove(oldest[i]));
      ++report.oldest;
    }
    return absl::OkStatus();
  };
  if (absl::Status status = Change("sweep", sweep); !status.ok()) {
    bytes_after_sweep_ = result_bytes_.load();
    return status;
  }
  usage_swept_ = today;
  result_bytes_ -= gone_bytes;
  bytes_after_sweep_ = report.oldest > 0 ? -1 : result_bytes_.load();
  Reach(options_.at_point, "sweep.before_files");
  for (const JobRecord& job : gone) {
    for (const TaskRecord& task : job.tasks) {
      if (task.image) disk_.Remove(task.image->file);
    }
  }

  ASSIGN_OR_RETURN(const std::vector<std::string> candidates, disk_.TakeCandidates());
  for (const std::string& file : candidates) {
    // A temporary file may be in use by a running write. Those of earlier processes are removed before anything is
    // written.
    if (absl::StrContains(file, kTemporaryMark) || IsWanted(file)) continue;
    disk_.Remove(file);
    ++report.orphans;
  }
  return report;
}

std::array<int64_t, kTaskStates> SqliteJobStore::Counts() const {
  std::array<int64_t, kTaskStates> counts;
  for (size_t state = 0; state < counts.size(); ++state) counts[state] = counts_[state];
  return counts;
}

int64_t SqliteJobStore::result_bytes() const { return result_bytes_; }

bool SqliteJobStore::has_too_many_bytes() const {
  const int64_t bytes = result_bytes_, bound = options_.retention_bytes;
  return bound > 0 && bytes > bound && bytes != bytes_after_sweep_;
}

StorageTrouble SqliteJobStore::trouble() const { return disk_.health().trouble(); }

absl::Status SqliteJobStore::CheckPlace() { return disk_.CheckPlace(); }

absl::Status SqliteJobStore::TryWrite() {
  const std::lock_guard lock(trial_mutex_);
  const int64_t failures = disk_.health().failures();
  absl::Status tried = commit_.Run("try_write", [](SqliteDatabase& database) {
    return database.Execute(absl::StrCat("PRAGMA user_version=", kSchemaVersion).c_str());
  });
  if (tried.ok()) tried = disk_.TryRoom();
  if (!tried.ok()) return tried;
  disk_.health().Recover(failures);
  const StorageTrouble left = disk_.health().trouble();
  return left.state == StorageState::kDamaged ? left.failure : absl::OkStatus();
}

}  // namespace tessera::server
