#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/jobs/sqlite_job_store.h"
#include "server/jobs/stored_job.h"

namespace tessera {
namespace {

// Of one attempt, so that an old one can never replace what a newer one wrote.
std::string ResultFileName(const TaskAttempt& attempt) {
  return absl::StrCat(absl::Hex(attempt.task % 256, absl::kZeroPad2), "/", attempt.task, "-", attempt.attempt);
}

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

bool SqliteJobStore::IsWanted(const std::string& file) {
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

absl::StatusOr<ClaimedTask> SqliteJobStore::Claim(uint64_t task) {
  ClaimedTask claimed;
  absl::Status damage;
  const auto claim = [&](SqliteDatabase& database, StateCounts& counts) {
    damage = absl::OkStatus();
    ASSIGN_OR_RETURN(const TaskRow row, FindTask(database, task));
    TaskMove move = MoveTo(TaskState::kRunning);
    move.blame = row.blame;
    RETURN_IF_ERROR(CheckMove(row.state, move.to));
    const absl::StatusOr<std::string> request = ReadRequest(database, row.job);
    if (IsStorageFailure(request.status())) return request.status();
    absl::StatusOr<StoredJob> stored = request.ok() ? ParseStoredJob(*request) : request.status();
    if (stored.ok()) {
      claimed = {.claim = {.task = task, .attempt = row.attempt + 1}, .parameters = stored->request.parameters};
      claimed.parameters.seed += task - row.job;
    } else {
      damage = stored.status();
      move.to = TaskState::kFailed;
      move.error = damage;
    }
    return MoveTask(database, row, move, counts);
  };
  // A claim that is lost with the power is lost with the worker that it was for; an end of the task is synced with it.
  absl::Status status = Change("claim", claim, Durability::kWithTheNextSync);
  if (!status.ok()) return status;
  if (!damage.ok()) return damage;
  return claimed;
}

absl::Status SqliteJobStore::Finish(const TaskAttempt& attempt, const std::string& file, const ImageOrigin& origin) {
  if (file.size() > options_.max_image_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the image's file has ", file.size(), " bytes, at most ", options_.max_image_bytes, " are kept"));
  }
  // Nobody's file is written, let alone replaced, for an attempt that was given up.
  const absl::StatusOr<TaskRow> runs = Read([&](SqliteDatabase& database) { return FindAttempt(database, attempt); });
  if (!runs.ok()) return runs.status();
  StoredImage image{.origin = origin, .file = ResultFileName(attempt), .bytes = file.size(), .digest = Sha256Of(file)};
  TaskMove move = MoveTo(TaskState::kDone);
  move.image = SerializeImage(image);
  if (absl::Status legible = ParseStoredImage(move.image).status(); !legible.ok()) {
    return absl::InvalidArgumentError("the image's origin is out of range");
  }
  Reach(options_.at_point, "finish.before_file");
  RETURN_IF_ERROR(disk_.Write(image.file, file));
  Reach(options_.at_point, "finish.after_file");
  absl::Status status = End("finish", attempt, move);
  if (status.ok()) result_bytes_ += static_cast<int64_t>(file.size());
  if (absl::IsFailedPrecondition(status) || absl::IsNotFound(status)) disk_.Remove(image.file);
  return status;
}

absl::Status SqliteJobStore::Fail(const TaskAttempt& attempt, const absl::Status& error) {
  TaskMove move = MoveTo(TaskState::kFailed);
  move.error = error.ok() ? absl::InternalError("the image failed without a reason") : error;
  return End("fail", attempt, move);
}

absl::Status SqliteJobStore::FailQueued(uint64_t task, const absl::Status& error) {
  return Change("fail_queued", [&](SqliteDatabase& database, StateCounts& counts) {
    ASSIGN_OR_RETURN(const TaskRow row, FindTask(database, task));
    if (row.state != TaskState::kQueued) {
      return absl::FailedPreconditionError(absl::StrCat("the task is ", TaskStateName(row.state), ", not queued"));
    }
    TaskMove move = MoveTo(TaskState::kFailed);
    move.blame = row.blame;
    move.error = error.ok() ? absl::InternalError("the image failed without a reason") : error;
    return MoveTask(database, row, move, counts);
  });
}

absl::Status SqliteJobStore::GiveBack(absl::Span<const TaskAttempt> attempts) {
  return Change("give_back", [&](SqliteDatabase& database, StateCounts& counts) {
    for (const TaskAttempt& attempt : attempts) {
      const absl::StatusOr<TaskRow> row = FindAttempt(database, attempt);
      if (IsStorageFailure(row.status())) return row.status();
      if (!row.ok()) continue;  // it has ended, or others have it
      TaskMove move = MoveTo(TaskState::kQueued);
      move.blame = row->blame;
      RETURN_IF_ERROR(MoveTask(database, *row, move, counts));
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<Verdict>> SqliteJobStore::GroupDied(absl::Span<const TaskAttempt> attempts,
                                                               const std::string& reason) {
  std::vector<Verdict> verdicts;
  absl::Status status = Change("group_died", [&](SqliteDatabase& database, StateCounts& counts) {
    verdicts.clear();
    for (const TaskAttempt& attempt : attempts) {
      const absl::StatusOr<TaskRow> row = FindTask(database, attempt.task);
      if (IsStorageFailure(row.status())) return row.status();
      if (!row.ok()) continue;
      Verdict verdict{.attempt = attempt, .state = row->state, .blame = row->blame};
      if (row->state == TaskState::kRunning && row->attempt == attempt.attempt) {
        TaskMove move = MoveTo(TaskState::kQueued);
        move.blame = AfterDeath(row->blame, attempts.size() == 1);
        if (MustBeQuarantined(move.blame)) {
          move.to = TaskState::kQuarantined;
          move.error = absl::AbortedError(
              absl::StrCat("the worker ended ", move.blame.strikes, " times while it made this image alone: ", reason));
        }
        RETURN_IF_ERROR(MoveTask(database, *row, move, counts));
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

absl::StatusOr<SweepReport> SqliteJobStore::Sweep(int64_t limit) {
  SweepReport report;
  std::vector<JobRecord> gone;
  int64_t gone_bytes = 0;
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
    ASSIGN_OR_RETURN(const std::vector<uint64_t> expired, ListExpired(database, Now(), limit));
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
    // A temporary file may be one that is being written; those of earlier processes go before anything is written.
    if (absl::StrContains(file, kTemporaryMark) || IsWanted(file)) continue;
    disk_.Remove(file);
    ++report.orphans;
  }
  return report;
}

}  // namespace tessera
