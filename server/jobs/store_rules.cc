#include "server/jobs/store_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"
#include "server/jobs/result_names.h"
#include "server/jobs/stored_job.h"
#include "server/jobs/stored_task.h"

namespace tessera::server {
namespace {

constexpr int32_t kMaxPage = 1000;
// Clocks of servers that share a queue, and a clock that is being adjusted, differ by less than this.
constexpr absl::Duration kClockTolerance = absl::Minutes(1);

}  // namespace

absl::StatusOr<uint64_t> BeginOfPage(const RecordIds& ids, int32_t limit, const std::string& after) {
  if (limit < 1 || limit > kMaxPage) {
    return absl::InvalidArgumentError(absl::StrCat("limit is ", limit, ", valid values are 1 to ", kMaxPage));
  }
  if (after.empty()) return uint64_t{INT64_MAX};
  absl::StatusOr<uint64_t> number = ids.PageNumber(after);
  if (!number.ok()) return absl::NotFoundError("after is not what an earlier page gave as its next");
  return number;
}

QueuedTask QueuedTaskOf(const StoredTask& stored, const RecordIds& ids) {
  const QueueEntry& row = stored.row;
  return {.id = row.task.number,
          .index = static_cast<int32_t>(row.task.number - row.task.job),
          .job = ids.JobId(row.job.number, row.job.token),
          .tenant = row.job.tenant,
          .blame = row.task.blame,
          .created = row.job.created,
          .deadline = row.job.deadline,
          .trace_parent = stored.job.trace_parent,
          .request = &stored.job.request};
}

void QueueTimes::Correct(QueuedTask& task) {
  last_ = std::max(last_, std::min(task.created, now_));
  task.created = last_;
}

std::string FutureText(absl::Time newest, absl::Time now) {
  if (newest <= now + kClockTolerance) return "";
  const auto text = [](absl::Time time) {
    return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
  };
  return absl::StrCat("the newest time in the job store is ", text(newest), ", ",
                      absl::FormatDuration(absl::Trunc(newest - now, absl::Seconds(1))), " after the clock's time, ",
                      text(now), ": the clock is wrong, or was wrong when that was written");
}

absl::Status CheckQueued(TaskState state) {
  if (state == TaskState::kQueued) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the task is ", TaskStateName(state), ", not queued"));
}

absl::Status NoSuchImage() { return absl::NotFoundError("there is no such image"); }

absl::Status CheckImageBytes(const std::string& file, uint64_t most) {
  if (file.size() <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the image's file has ", file.size(), " bytes; at most ", most, " are valid"));
}

TaskMove WithError(TaskMove move, const absl::Status& error) {
  move.error = ReasonOf(error);
  return move;
}

absl::StatusOr<TaskMove> WithImage(TaskMove move, const TaskAttempt& attempt, const std::string& file,
                                   const ImageOrigin& origin) {
  const StoredImage image{
      .origin = origin, .file = ResultFileName(attempt), .bytes = file.size(), .digest = base::Sha256Of(file)};
  move.image = SerializeImage(image);
  if (!ParseStoredImage(move.image).ok()) return absl::InvalidArgumentError("the image's origin is out of range");
  return move;
}

TaskMove WithDeath(TaskMove move, const Blame& before, bool was_alone, const std::string& reason) {
  const Blame blame = AfterDeath(before, was_alone);
  move.blame = blame;
  if (MustBeQuarantined(blame)) {
    move.to = TaskState::kQuarantined;
    move.error = absl::AbortedError(
        absl::StrCat("the worker ended ", blame.deaths, " times while it made this image alone: ", reason));
  }
  return move;
}

}  // namespace tessera::server
