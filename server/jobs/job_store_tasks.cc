#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "server/jobs/job_store.h"
#include "server/jobs/job_store_impl.h"
#include "server/jobs/stored_job.h"

namespace tessera {
namespace {

std::optional<TaskAttempt> AttemptOf(const std::string& file) {
  TaskAttempt attempt;
  const size_t slash = file.rfind('/') + 1;
  const size_t dash = file.find('-', slash);
  if (dash == std::string::npos || !absl::SimpleAtoi(file.substr(slash, dash - slash), &attempt.task) ||
      !absl::SimpleAtoi(file.substr(dash + 1), &attempt.attempt) || ResultFileName(attempt) != file) {
    return std::nullopt;
  }
  return attempt;
}

int64_t ImageBytesOf(const JobRecord& job) {
  int64_t bytes = 0;
  for (const TaskRecord& task : job.tasks) bytes += task.image ? static_cast<int64_t>(task.image->bytes) : 0;
  return bytes;
}

}  // namespace

std::string ResultFileName(const TaskAttempt& attempt) {
  return absl::StrCat(absl::Hex(attempt.task % 256, absl::kZeroPad2), "/", attempt.task, "-", attempt.attempt);
}

bool JobStore::Impl::IsWanted(const std::string& file) {
  const std::optional<TaskAttempt> attempt = AttemptOf(file);
  if (!attempt) return false;
  return Read([&](SqliteDatabase& database) {
    const absl::StatusOr<TaskRow> task = FindTask(database, attempt->task);
    // Whatever cannot be decided is kept.
    if (!task.ok()) return !absl::IsNotFound(task.status());
    if (task->attempt != attempt->attempt) return false;
    return task->state == TaskState::kRunning || task->state == TaskState::kDone;
  });
}

absl::StatusOr<ClaimedTask> JobStore::Claim(uint64_t task) {
  ClaimedTask claimed;
  absl::Status damage;
  const auto claim = [&](SqliteDatabase& database, StateCounts& counts) {
    damage = absl::OkStatus();
    const absl::StatusOr<TaskRow> row = FindTask(database, task);
    if (!row.ok()) return row.status();
    TaskMove move = impl_->MoveTo(TaskState::kRunning);
    move.blame = row->blame;
    if (absl::Status legal = CheckMove(row->state, move.to); !legal.ok()) return legal;
    const absl::StatusOr<std::string> request = ReadRequest(database, row->job);
    if (IsStorageFailure(request.status())) return request.status();
    absl::StatusOr<StoredJob> stored = request.ok() ? ParseStoredJob(*request) : request.status();
    if (stored.ok()) {
      claimed = {.claim = {.task = task, .attempt = row->attempt + 1}, .parameters = stored->request.parameters};
      claimed.parameters.seed += task - row->job;
    } else {
      damage = stored.status();
      move.to = TaskState::kFailed;
      move.error = damage;
    }
    return MoveTask(database, *row, move, counts);
  };
  // A claim that is lost with the power is lost with the worker that it was for; an end of the task is synced with it.
  absl::Status status = impl_->Change("claim", claim, Durability::kWithTheNextSync);
  if (!status.ok()) return status;
  if (!damage.ok()) return damage;
  return claimed;
}

absl::Status JobStore::Finish(const TaskAttempt& attempt, const std::string& file, const ImageOrigin& origin) {
  if (file.size() > impl_->options_.max_image_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the image's file has ", file.size(), " bytes, at most ",
                                                   impl_->options_.max_image_bytes, " are kept"));
  }
  // Nobody's file is written, let alone replaced, for an attempt that was given up.
  const absl::StatusOr<TaskRow> runs =
      impl_->Read([&](SqliteDatabase& database) { return FindAttempt(database, attempt); });
  if (!runs.ok()) return runs.status();
  StoredImage image{.origin = origin, .file = ResultFileName(attempt), .bytes = file.size(), .digest = Sha256Of(file)};
  TaskMove move = impl_->MoveTo(TaskState::kDone);
  move.image = SerializeImage(image);
  if (absl::Status legible = ParseStoredImage(move.image).status(); !legible.ok()) {
    return absl::InvalidArgumentError("the image's origin is out of range");
  }
  Reach(impl_->options_.at_point, "finish.before_file");
  if (absl::Status status = impl_->WriteFile(image.file, file); !status.ok()) return status;
  Reach(impl_->options_.at_point, "finish.after_file");
  absl::Status status = impl_->End("finish", attempt, move);
  if (status.ok()) impl_->result_bytes_ += static_cast<int64_t>(file.size());
  if (absl::IsFailedPrecondition(status) || absl::IsNotFound(status)) impl_->RemoveFile(image.file);
  return status;
}

absl::Status JobStore::Fail(const TaskAttempt& attempt, const absl::Status& error) {
  TaskMove move = impl_->MoveTo(TaskState::kFailed);
  move.error = error.ok() ? absl::InternalError("the image failed without a reason") : error;
  return impl_->End("fail", attempt, move);
}

absl::Status JobStore::FailQueued(uint64_t task, const absl::Status& error) {
  return impl_->Change("fail_queued", [&](SqliteDatabase& database, StateCounts& counts) {
    const absl::StatusOr<TaskRow> row = FindTask(database, task);
    if (!row.ok()) return row.status();
    if (row->state != TaskState::kQueued) {
      return absl::FailedPreconditionError(absl::StrCat("the task is ", TaskStateName(row->state), ", not queued"));
    }
    TaskMove move = impl_->MoveTo(TaskState::kFailed);
    move.blame = row->blame;
    move.error = error.ok() ? absl::InternalError("the image failed without a reason") : error;
    return MoveTask(database, *row, move, counts);
  });
}

absl::Status JobStore::GiveBack(absl::Span<const TaskAttempt> attempts) {
  return impl_->Change("give_back", [&](SqliteDatabase& database, StateCounts& counts) {
    for (const TaskAttempt& attempt : attempts) {
      const absl::StatusOr<TaskRow> row = FindAttempt(database, attempt);
      if (IsStorageFailure(row.status())) return row.status();
      if (!row.ok()) continue;  // it has ended, or others have it
      TaskMove move = impl_->MoveTo(TaskState::kQueued);
      move.blame = row->blame;
      if (absl::Status moved = MoveTask(database, *row, move, counts); !moved.ok()) return moved;
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<Verdict>> JobStore::GroupDied(absl::Span<const TaskAttempt> attempts,
                                                         const std::string& reason) {
  std::vector<Verdict> verdicts;
  absl::Status status = impl_->Change("group_died", [&](SqliteDatabase& database, StateCounts& counts) {
    verdicts.clear();
    for (const TaskAttempt& attempt : attempts) {
      const absl::StatusOr<TaskRow> row = FindTask(database, attempt.task);
      if (IsStorageFailure(row.status())) return row.status();
      if (!row.ok()) continue;
      Verdict verdict{.attempt = attempt, .state = row->state, .blame = row->blame};
      if (row->state == TaskState::kRunning && row->attempt == attempt.attempt) {
        TaskMove move = impl_->MoveTo(TaskState::kQueued);
        move.blame = AfterDeath(row->blame, attempts.size() == 1);
        if (MustBeQuarantined(move.blame)) {
          move.to = TaskState::kQuarantined;
          move.error = absl::AbortedError(
              absl::StrCat("the worker ended ", move.blame.strikes, " times while it made this image alone: ", reason));
        }
        if (absl::Status moved = MoveTask(database, *row, move, counts); !moved.ok()) return moved;
        verdict.state = move.to;
        verdict.blame = move.blame;
      }
      verdicts.push_back(verdict);
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return verdicts;
}

absl::StatusOr<SweepReport> JobStore::Sweep(int64_t limit) {
  SweepReport report;
  std::vector<JobRecord> gone;
  int64_t gone_bytes = 0;
  const auto sweep = [&](SqliteDatabase& database, StateCounts& counts) {
    report = {};
    gone.clear();
    gone_bytes = 0;
    const auto remove = [&](uint64_t number) {
      absl::StatusOr<JobRecord> job = ReadJob(database, impl_->ids_, number);
      if (!job.ok()) return job.status();
      gone_bytes += ImageBytesOf(*job);
      gone.push_back(*std::move(job));
      return DeleteJob(database, gone.back(), counts);
    };
    const absl::StatusOr<std::vector<uint64_t>> expired = ListExpired(database, impl_->Now(), limit);
    if (!expired.ok()) return expired.status();
    for (uint64_t number : *expired) {
      if (absl::Status removed = remove(number); !removed.ok()) return removed;
      ++report.jobs;
    }
    const int64_t bound = impl_->options_.retention_bytes;
    const auto is_too_much = [&] { return bound > 0 && impl_->result_bytes_ - gone_bytes > bound; };
    if (!is_too_much()) return absl::OkStatus();
    const absl::StatusOr<std::vector<uint64_t>> oldest = ListEnded(database, limit + 1);
    if (!oldest.ok()) return oldest.status();
    for (size_t i = 0; i + 1 < oldest->size() && is_too_much(); ++i) {
      if (absl::Status removed = remove((*oldest)[i]); !removed.ok()) return removed;
      ++report.oldest;
    }
    return absl::OkStatus();
  };
  if (absl::Status status = impl_->Change("sweep", sweep); !status.ok()) {
    impl_->bytes_after_sweep_ = impl_->result_bytes_.load();
    return status;
  }
  impl_->result_bytes_ -= gone_bytes;
  impl_->bytes_after_sweep_ = report.oldest > 0 ? -1 : impl_->result_bytes_.load();
  Reach(impl_->options_.at_point, "sweep.before_files");
  for (const JobRecord& job : gone) impl_->RemoveFiles(job);

  std::vector<std::string> candidates;
  if (!impl_->orphans_known_.exchange(true)) {
    absl::StatusOr<std::vector<std::string>> files = impl_->options_.files->List();
    if (!files.ok()) {
      impl_->orphans_known_ = false;
      return files.status();
    }
    candidates = *std::move(files);
  } else {
    const std::lock_guard lock(impl_->left_over_mutex_);
    candidates.swap(impl_->left_over_);
  }
  for (const std::string& file : candidates) {
    // A temporary file may be one that is being written; those of earlier processes go before anything is written.
    if (absl::StrContains(file, kTemporaryMark) || impl_->IsWanted(file)) continue;
    impl_->RemoveFile(file);
    ++report.orphans;
  }
  return report;
}

}  // namespace tessera
