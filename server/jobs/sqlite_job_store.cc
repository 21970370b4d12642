#include "server/jobs/sqlite_job_store.h"

#include <algorithm>
#include <future>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/private_files.h"
#include "base/random_bytes.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/jobs/schema.h"
#include "server/jobs/store_report.h"
#include "server/jobs/stored_job.h"

namespace tessera {
namespace {

constexpr int32_t kMaxPage = 1000;

absl::Status CheckNewJob(const NewJob& job) {
  if (job.idempotency && (job.idempotency->key.empty() || job.idempotency->key.size() > kMaxIdempotencyKeyBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("the idempotency key has ", job.idempotency->key.size(),
                                                   " bytes, legal is 1 to ", kMaxIdempotencyKeyBytes));
  }
  return absl::OkStatus();
}

std::string HashOfKey(const std::string& tenant, const std::string& key) {
  return Sha256Of(absl::StrCat(tenant.size(), " ", tenant, key));
}

absl::StatusOr<std::optional<JobRecord>> ReadSubmission(SqliteDatabase& database, const RecordIds& ids,
                                                        const std::string& tenant, const std::string& key_hash,
                                                        const std::string& digest) {
  ASSIGN_OR_RETURN(const std::optional<KnownKey> known, FindIdempotencyKey(database, tenant, key_hash));
  if (!known.has_value()) return std::nullopt;
  if (known->digest != digest) {
    return absl::AlreadyExistsError(
        "this idempotency key was used before with another request; use a new key for a new request");
  }
  return ReadJob(database, ids, known->job);
}

absl::Status WithAdvice(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(status.message(), "; ", kStoreAdvice));
}

// The files that are open; another layer's files are in no folder.
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
      opened_(opened.now),
      opened_elapsed_(options.clock->Elapsed()),
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

absl::StatusOr<std::unique_ptr<JobStore>> SqliteJobStore::Open(const SqliteJobStoreOptions& options) {
  ProcessLock lock;
  if (options.vfs.empty()) {
    ASSIGN_OR_RETURN(lock, ProcessLock::Take(options.path + ".lock", options.patience));
  }
  RETURN_IF_ERROR(options.files->Open());
  if (options.vfs.empty()) {
    if (absl::Status missing = CheckNothingIsMissing(options.path, *options.files); !missing.ok())
      return WithAdvice(missing);
    RETURN_IF_ERROR(MakePrivateFile(options.path));
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
  const absl::Time now = std::max(options.clock->Now(), newest);
  RETURN_IF_ERROR((*writer)->Execute("BEGIN IMMEDIATE"));
  ASSIGN_OR_RETURN(const int64_t given_back, QueueRunning(**writer));
  ASSIGN_OR_RETURN(const FinishedImages finished, FailDamagedImages(**writer, now + options.retention));
  ASSIGN_OR_RETURN(const StateCounts counts, CountStates(**writer, now + options.retention));
  Reach(options.at_point, "recover.before_commit");
  RETURN_IF_ERROR((*writer)->Execute("COMMIT"));
  Reach(options.at_point, "recover.after_commit");
  ASSIGN_OR_RETURN(std::unique_ptr<SqliteDatabase> reader, SqliteDatabase::Open(file));
  return std::unique_ptr<JobStore>(
      new SqliteJobStore(options, {.lock = std::move(lock),
                                   .writer = *std::move(writer),
                                   .reader = std::move(reader),
                                   .ids = *std::move(ids),
                                   .now = now,
                                   .next_number = next,
                                   .recovery = {.given_back = given_back, .damaged = finished.damaged},
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

absl::Status SqliteJobStore::End(const char* name, const TaskAttempt& attempt, const TaskMove& move) {
  return Change(name, [&](SqliteDatabase& database, StateCounts& counts) {
    ASSIGN_OR_RETURN(const TaskRow task, FindAttempt(database, attempt));
    TaskMove with_blame = move;
    with_blame.blame = task.blame;
    return MoveTask(database, task, with_blame, counts);
  });
}

absl::Time SqliteJobStore::Now() const { return opened_ + (options_.clock->Elapsed() - opened_elapsed_); }

void SqliteJobStore::SubmitAsync(NewJob job, std::function<void(absl::StatusOr<SubmittedJob>)> done) {
  if (absl::Status status = CheckNewJob(job); !status.ok()) return done(status);
  struct Submission {
    JobRow row;
    std::string key_hash;
    std::string key_digest;
    StateCounts counts;
    SubmittedJob result;
    JobRequest request;
    std::string trace_parent;
  };
  auto submission = std::make_shared<Submission>();
  StoredJob stored{
      .tenant = std::move(job.tenant), .request = std::move(job.request), .trace_parent = std::move(job.trace_parent)};
  if (job.idempotency) {
    stored.idempotency_key_hash = HashOfKey(stored.tenant, job.idempotency->key);
    submission->key_hash = stored.idempotency_key_hash;
    submission->key_digest = job.idempotency->digest;
  }
  absl::StatusOr<std::string> bytes = SerializeJob(stored);
  if (!bytes.ok()) return done(bytes.status());
  JobRow& row = submission->row;
  row.token = RandomId("");
  row.tenant = std::move(stored.tenant);
  row.tasks = stored.request.count;
  row.created = Now();
  if (stored.request.patience) row.deadline = row.created + *stored.request.patience;
  row.request = *std::move(bytes);
  submission->request = std::move(stored.request);
  submission->trace_parent = std::move(stored.trace_parent);

  const auto apply = [this, submission](SqliteDatabase& database) -> absl::Status {
    submission->counts = {};
    submission->result = {};
    JobRow& row = submission->row;
    if (!submission->key_hash.empty()) {
      ASSIGN_OR_RETURN(std::optional<JobRecord> earlier,
                       ReadSubmission(database, ids_, row.tenant, submission->key_hash, submission->key_digest));
      if (earlier.has_value()) {
        submission->result = {.job = *std::move(earlier), .existed = true};
        return absl::OkStatus();
      }
    }
    row.number = next_number_;
    next_number_ += static_cast<uint64_t>(row.tasks);
    RETURN_IF_ERROR(InsertJob(database, row));
    submission->counts[static_cast<size_t>(TaskState::kQueued)] = row.tasks;
    if (submission->key_hash.empty()) return absl::OkStatus();
    return InsertIdempotencyKey(database, row, submission->key_hash, submission->key_digest);
  };
  const auto answer = [this, submission, done = std::move(done)](absl::Status status) {
    if (!status.ok()) return done(std::move(status));
    Count(submission->counts);
    if (!submission->result.existed) {
      const JobRow& row = submission->row;
      JobRecord& record = submission->result.job;
      record.id = ids_.JobId(row.number, row.token);
      record.tenant = row.tenant;
      record.request = std::move(submission->request);
      record.trace_parent = std::move(submission->trace_parent);
      record.created = row.created;
      record.deadline = row.deadline;
      for (int32_t index = 0; index < row.tasks; ++index) {
        record.tasks.push_back({.id = row.number + static_cast<uint64_t>(index), .index = index});
      }
    }
    done(std::move(submission->result));
  };
  commit_.Post({.name = "submit", .apply = apply, .done = answer});
}

absl::StatusOr<SubmittedJob> SqliteJobStore::Submit(const NewJob& job) {
  std::promise<absl::StatusOr<SubmittedJob>> result;
  SubmitAsync(job, [&result](absl::StatusOr<SubmittedJob> submitted) { result.set_value(std::move(submitted)); });
  return result.get_future().get();
}

absl::StatusOr<std::optional<JobRecord>> SqliteJobStore::FindSubmission(const std::string& tenant,
                                                                        const IdempotencyKey& key) {
  absl::StatusOr<std::optional<JobRecord>> job = Read([&](SqliteDatabase& database) {
    return ReadSubmission(database, ids_, tenant, HashOfKey(tenant, key.key), key.digest);
  });
  if (absl::IsNotFound(job.status())) return std::nullopt;  // deleted in between
  return job;
}

absl::StatusOr<JobRecord> SqliteJobStore::Cancel(const std::string& tenant, const std::string& job) {
  JobRecord record;
  absl::Status status = Change("cancel", [&](SqliteDatabase& database, StateCounts& counts) {
    ASSIGN_OR_RETURN(const JobRecord before, ReadJob(database, ids_, tenant, job));
    for (const TaskRecord& task : before.tasks) {
      if (IsEnded(task.state)) continue;
      ASSIGN_OR_RETURN(const TaskRow row, FindTask(database, task.id));
      TaskMove move = MoveTo(TaskState::kCancelled);
      move.blame = row.blame;
      RETURN_IF_ERROR(MoveTask(database, row, move, counts));
    }
    ASSIGN_OR_RETURN(JobRecord after, ReadJob(database, ids_, tenant, job));
    record = std::move(after);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return record;
}

absl::StatusOr<JobRecord> SqliteJobStore::Get(const std::string& tenant, const std::string& job) {
  return Read([&](SqliteDatabase& database) { return ReadJob(database, ids_, tenant, job); });
}

absl::StatusOr<JobRecordPage> SqliteJobStore::List(const std::string& tenant, int32_t limit, const std::string& after,
                                                   std::optional<JobState> state) {
  if (limit < 1 || limit > kMaxPage) {
    return absl::InvalidArgumentError(absl::StrCat("limit is ", limit, ", legal is 1 to ", kMaxPage));
  }
  uint64_t before = uint64_t{INT64_MAX};
  if (!after.empty()) {
    const absl::StatusOr<uint64_t> number = ids_.PageNumber(after);
    if (!number.ok()) return absl::InvalidArgumentError("after is not what an earlier page gave as its next");
    before = *number;
  }
  return Read([&](SqliteDatabase& database) -> absl::StatusOr<JobRecordPage> {
    ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, ListJobs(database, tenant, state, before, limit + 1));
    JobRecordPage page;
    for (size_t i = 0; i < numbers.size() && static_cast<int32_t>(i) < limit; ++i) {
      absl::StatusOr<JobRecord> job = ReadJob(database, ids_, numbers[i]);
      if (absl::IsNotFound(job.status())) continue;  // deleted in between
      if (!job.ok()) return job.status();
      // It may have moved on in between, and a damaged one shows as failed.
      if (state.has_value() && StateOf(*job) != *state) continue;
      page.jobs.push_back(*std::move(job));
    }
    if (static_cast<int32_t>(numbers.size()) > limit) page.next = ids_.PageId(numbers[static_cast<size_t>(limit) - 1]);
    return page;
  });
}

absl::StatusOr<std::string> SqliteJobStore::ReadImage(const std::string& tenant, const std::string& image) {
  ASSIGN_OR_RETURN(const uint64_t number, ids_.ImageNumber(image));
  const absl::StatusOr<JobRecord> job = Read([&](SqliteDatabase& database) -> absl::StatusOr<JobRecord> {
    ASSIGN_OR_RETURN(const TaskRow task, FindTask(database, number));
    return ReadJob(database, ids_, task.job);
  });
  const auto unknown = [] { return absl::NotFoundError("there is no such image"); };
  if (absl::IsNotFound(job.status())) return unknown();
  if (!job.ok()) return job.status();
  if (job->tenant != tenant) return unknown();
  for (const TaskRecord& task : job->tasks) {
    if (!task.image || task.image->id != image) continue;
    absl::StatusOr<std::string> file = options_.files->Read(task.image->file, options_.max_image_bytes);
    if (absl::IsNotFound(file.status())) {
      // Or only its folder is, and comes back.
      RETURN_IF_ERROR(disk_.CheckPlace());
      return absl::DataLossError("the image's file is gone");
    }
    if (!file.ok()) return file;
    if (file->size() != task.image->bytes || Sha256Of(*file) != task.image->digest) {
      return absl::DataLossError("the image's file is damaged: it is not what was written");
    }
    return file;
  }
  return unknown();
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

}  // namespace tessera
