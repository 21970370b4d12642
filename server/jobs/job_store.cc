#include "server/jobs/job_store.h"

#include <algorithm>
#include <future>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/private_files.h"
#include "base/random_bytes.h"
#include "base/sha256.h"
#include "server/jobs/job_store_impl.h"
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
  const absl::StatusOr<std::optional<KnownKey>> known = FindIdempotencyKey(database, tenant, key_hash);
  if (!known.ok()) return known.status();
  if (!known->has_value()) return std::nullopt;
  if ((*known)->digest != digest) {
    return absl::AlreadyExistsError(
        "this idempotency key was used before with another request; use a new key for a new request");
  }
  return ReadJob(database, ids, (*known)->job);
}

absl::Status WithAdvice(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(status.message(), "; ", kStoreAdvice));
}

}  // namespace

JobStore::JobStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

JobStore::~JobStore() = default;

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(const JobStoreOptions& options) {
  ProcessLock lock;
  if (options.vfs.empty()) {
    absl::StatusOr<ProcessLock> taken = ProcessLock::Take(options.path + ".lock", options.patience);
    if (!taken.ok()) return taken.status();
    lock = *std::move(taken);
  }
  if (absl::Status ready = options.files->Open(); !ready.ok()) return ready;
  if (options.vfs.empty()) {
    if (absl::Status missing = CheckNothingIsMissing(options.path, *options.files); !missing.ok())
      return WithAdvice(missing);
    if (absl::Status made = MakePrivateFile(options.path); !made.ok()) return made;
  }
  const SqliteDatabase::Options file = {.path = options.path, .vfs = options.vfs};
  absl::StatusOr<std::unique_ptr<SqliteDatabase>> writer = SqliteDatabase::Open(file);
  absl::Status sound = writer.ok() ? (*writer)->Check() : writer.status();
  if (!sound.ok()) return absl::IsDataLoss(sound) ? WithAdvice(sound) : sound;
  if (absl::Status status = MigrateSchema(**writer, kSchemaVersion); !status.ok()) return status;
  absl::StatusOr<RecordIds> ids = ReadRecordIds(**writer);
  if (!ids.ok()) return absl::IsDataLoss(ids.status()) ? WithAdvice(ids.status()) : ids.status();
  const absl::StatusOr<uint64_t> next = NextNumber(**writer);
  if (!next.ok()) return next.status();
  if (absl::Status known = CheckImagesAreKnown(*next, options.path, *options.files); !known.ok())
    return WithAdvice(known);
  const absl::StatusOr<absl::Time> newest = NewestTime(**writer);
  if (!newest.ok()) return newest.status();
  const absl::Time now = std::max(options.clock->Now(), *newest);
  if (absl::Status begun = (*writer)->Execute("BEGIN IMMEDIATE"); !begun.ok()) return begun;
  const absl::StatusOr<int64_t> given_back = QueueRunning(**writer);
  if (!given_back.ok()) return given_back.status();
  const absl::StatusOr<FinishedImages> finished = FailDamagedImages(**writer, now + options.retention);
  if (!finished.ok()) return finished.status();
  const absl::StatusOr<StateCounts> counts = CountStates(**writer, now + options.retention);
  if (!counts.ok()) return counts.status();
  Reach(options.at_point, "recover.before_commit");
  if (absl::Status committed = (*writer)->Execute("COMMIT"); !committed.ok()) return committed;
  Reach(options.at_point, "recover.after_commit");
  absl::StatusOr<std::unique_ptr<SqliteDatabase>> reader = SqliteDatabase::Open(file);
  if (!reader.ok()) return reader.status();

  auto impl = std::make_unique<Impl>(options, std::move(lock), *std::move(writer), *std::move(reader), *std::move(ids),
                                     now, *next);
  impl->given_back_ = *given_back;
  impl->damaged_ = finished->damaged;
  impl->result_bytes_ = finished->bytes;
  impl->Count(*counts);
  return std::unique_ptr<JobStore>(new JobStore(std::move(impl)));
}

absl::Time JobStore::Now() const { return impl_->Now(); }

void JobStore::SubmitAsync(NewJob job, std::function<void(absl::StatusOr<SubmittedJob>)> done) {
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
  row.created = impl_->Now();
  if (stored.request.patience) row.deadline = row.created + *stored.request.patience;
  row.request = *std::move(bytes);
  submission->request = std::move(stored.request);
  submission->trace_parent = std::move(stored.trace_parent);

  Impl* impl = impl_.get();
  const auto apply = [impl, submission](SqliteDatabase& database) -> absl::Status {
    submission->counts = {};
    submission->result = {};
    JobRow& row = submission->row;
    if (!submission->key_hash.empty()) {
      absl::StatusOr<std::optional<JobRecord>> earlier =
          ReadSubmission(database, impl->ids_, row.tenant, submission->key_hash, submission->key_digest);
      if (!earlier.ok()) return earlier.status();
      if (earlier->has_value()) {
        submission->result = {.job = **std::move(earlier), .existed = true};
        return absl::OkStatus();
      }
    }
    row.number = impl->next_number_;
    impl->next_number_ += static_cast<uint64_t>(row.tasks);
    if (absl::Status status = InsertJob(database, row); !status.ok()) return status;
    submission->counts[static_cast<size_t>(TaskState::kQueued)] = row.tasks;
    if (submission->key_hash.empty()) return absl::OkStatus();
    return InsertIdempotencyKey(database, row, submission->key_hash, submission->key_digest);
  };
  const auto answer = [impl, submission, done = std::move(done)](absl::Status status) {
    if (!status.ok()) return done(std::move(status));
    impl->Count(submission->counts);
    if (!submission->result.existed) {
      const JobRow& row = submission->row;
      JobRecord& record = submission->result.job;
      record.id = impl->ids_.JobId(row.number, row.token);
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
  impl_->commit_.Post({.name = "submit", .apply = apply, .done = answer});
}

absl::StatusOr<SubmittedJob> JobStore::Submit(const NewJob& job) {
  std::promise<absl::StatusOr<SubmittedJob>> result;
  SubmitAsync(job, [&result](absl::StatusOr<SubmittedJob> submitted) { result.set_value(std::move(submitted)); });
  return result.get_future().get();
}

absl::StatusOr<std::optional<JobRecord>> JobStore::FindSubmission(const std::string& tenant,
                                                                  const IdempotencyKey& key) const {
  absl::StatusOr<std::optional<JobRecord>> job = impl_->Read([&](SqliteDatabase& database) {
    return ReadSubmission(database, impl_->ids_, tenant, HashOfKey(tenant, key.key), key.digest);
  });
  if (absl::IsNotFound(job.status())) return std::nullopt;  // deleted in between
  return job;
}

absl::StatusOr<JobRecord> JobStore::Cancel(const std::string& tenant, const std::string& job) {
  JobRecord record;
  absl::Status status = impl_->Change("cancel", [&](SqliteDatabase& database, StateCounts& counts) {
    const absl::StatusOr<JobRecord> before = ReadJob(database, impl_->ids_, tenant, job);
    if (!before.ok()) return before.status();
    for (const TaskRecord& task : before->tasks) {
      if (IsEnded(task.state)) continue;
      const absl::StatusOr<TaskRow> row = FindTask(database, task.id);
      if (!row.ok()) return row.status();
      TaskMove move = impl_->MoveTo(TaskState::kCancelled);
      move.blame = row->blame;
      if (absl::Status moved = MoveTask(database, *row, move, counts); !moved.ok()) return moved;
    }
    absl::StatusOr<JobRecord> after = ReadJob(database, impl_->ids_, tenant, job);
    if (!after.ok()) return after.status();
    record = *std::move(after);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return record;
}

absl::StatusOr<JobRecord> JobStore::Get(const std::string& tenant, const std::string& job) {
  return impl_->Read([&](SqliteDatabase& database) { return ReadJob(database, impl_->ids_, tenant, job); });
}

absl::StatusOr<JobRecordPage> JobStore::List(const std::string& tenant, int32_t limit, const std::string& after,
                                             std::optional<JobState> state) {
  if (limit < 1 || limit > kMaxPage) {
    return absl::InvalidArgumentError(absl::StrCat("limit is ", limit, ", legal is 1 to ", kMaxPage));
  }
  uint64_t before = uint64_t{INT64_MAX};
  if (!after.empty()) {
    const absl::StatusOr<uint64_t> number = impl_->ids_.PageNumber(after);
    if (!number.ok()) return absl::InvalidArgumentError("after is not what an earlier page gave as its next");
    before = *number;
  }
  return impl_->Read([&](SqliteDatabase& database) -> absl::StatusOr<JobRecordPage> {
    const absl::StatusOr<std::vector<uint64_t>> numbers = ListJobs(database, tenant, state, before, limit + 1);
    if (!numbers.ok()) return numbers.status();
    JobRecordPage page;
    for (size_t i = 0; i < numbers->size() && static_cast<int32_t>(i) < limit; ++i) {
      absl::StatusOr<JobRecord> job = ReadJob(database, impl_->ids_, (*numbers)[i]);
      if (absl::IsNotFound(job.status())) continue;  // deleted in between
      if (!job.ok()) return job.status();
      // It may have moved on in between, and a damaged one shows as failed.
      if (state.has_value() && StateOf(*job) != *state) continue;
      page.jobs.push_back(*std::move(job));
    }
    if (static_cast<int32_t>(numbers->size()) > limit)
      page.next = impl_->ids_.PageId((*numbers)[static_cast<size_t>(limit) - 1]);
    return page;
  });
}

absl::StatusOr<std::string> JobStore::ReadImage(const std::string& tenant, const std::string& image) {
  const absl::StatusOr<uint64_t> number = impl_->ids_.ImageNumber(image);
  if (!number.ok()) return number.status();
  const absl::StatusOr<JobRecord> job = impl_->Read([&](SqliteDatabase& database) -> absl::StatusOr<JobRecord> {
    const absl::StatusOr<TaskRow> task = FindTask(database, *number);
    if (!task.ok()) return task.status();
    return ReadJob(database, impl_->ids_, task->job);
  });
  const auto unknown = [] { return absl::NotFoundError("there is no such image"); };
  if (absl::IsNotFound(job.status())) return unknown();
  if (!job.ok()) return job.status();
  if (job->tenant != tenant) return unknown();
  for (const TaskRecord& task : job->tasks) {
    if (!task.image || task.image->id != image) continue;
    absl::StatusOr<std::string> file = impl_->options_.files->Read(task.image->file, impl_->options_.max_image_bytes);
    if (absl::IsNotFound(file.status())) {
      // Or only its folder is, and comes back.
      if (absl::Status place = impl_->CheckPlace(); !place.ok()) return place;
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

std::array<int64_t, kTaskStates> JobStore::Counts() const {
  std::array<int64_t, kTaskStates> counts;
  for (size_t state = 0; state < counts.size(); ++state) counts[state] = impl_->counts_[state];
  return counts;
}

int64_t JobStore::result_bytes() const { return impl_->result_bytes_; }

bool JobStore::has_too_many_bytes() const {
  const int64_t bytes = impl_->result_bytes_, bound = impl_->options_.retention_bytes;
  return bound > 0 && bytes > bound && bytes != impl_->bytes_after_sweep_;
}

StorageTrouble JobStore::trouble() const { return impl_->health_.trouble(); }

absl::Status JobStore::CheckPlace() { return impl_->CheckPlace(); }

absl::Status JobStore::TryWrite() {
  const std::lock_guard lock(impl_->trial_mutex_);
  const int64_t failures = impl_->health_.failures();
  absl::Status tried = impl_->commit_.Run("try_write", [](SqliteDatabase& database) {
    return database.Execute(absl::StrCat("PRAGMA user_version=", kSchemaVersion).c_str());
  });
  if (const uint64_t needed = impl_->health_.needed_bytes(); tried.ok() && needed > 0) {
    std::string bytes(needed, '\0');
    std::mt19937 random;  // of zeros some disks need no room
    for (char& byte : bytes) byte = static_cast<char>(random());
    tried = impl_->WriteFile(kTrialFile, bytes);
    impl_->RemoveFile(kTrialFile);
  }
  if (!tried.ok()) return tried;
  impl_->health_.Recover(failures);
  const StorageTrouble left = impl_->health_.trouble();
  return left.state == StorageState::kDamaged ? left.failure : absl::OkStatus();
}

}  // namespace tessera
