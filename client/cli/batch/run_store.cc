#include "client/cli/batch/run_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "server/api/image_request.h"
#include "server/jobs/new_job.h"

namespace tessera::client {

using server::TaskState;

absl::StatusOr<server::SubmittedJob> RunStore::Submit(const server::NewJob& job) {
  if (!job.idempotency.has_value()) return absl::InvalidArgumentError("a job of a run must be for one of its items");
  const std::lock_guard lock(mutex_);
  const uint64_t first = next_task_;
  next_task_ += static_cast<uint64_t>(job.request.count);
  Live& live = jobs_[first];
  live.key = job.idempotency->key;
  live.record = {.id = absl::StrCat("item-", live.key),
                 .tenant = job.tenant,
                 .request = std::make_shared<const server::JobRequest>(job.request),
                 .trace_parent = job.trace_parent,
                 .created = Now()};
  if (job.request.timeout.has_value()) live.record.deadline = live.record.created + *job.request.timeout;
  for (int32_t index = 0; index < job.request.count; ++index) {
    live.record.tasks.push_back({.id = first + static_cast<uint64_t>(index), .index = index});
  }
  live.images.resize(live.record.tasks.size());
  return server::SubmittedJob{.job = live.record};
}

std::vector<control::JobParameters> RunStore::NextJobs() const {
  const std::lock_guard lock(mutex_);
  std::vector<control::JobParameters> next;
  for (const auto& [first, live] : jobs_) {
    if (live.record.tasks[0].state == TaskState::kQueued) next.push_back(live.record.request->parameters);
  }
  return next;
}

RunStore::Live* RunStore::FindJob(uint64_t task) {
  auto after = jobs_.upper_bound(task);
  if (after == jobs_.begin()) return nullptr;
  Live& live = std::prev(after)->second;
  return task < std::prev(after)->first + live.record.tasks.size() ? &live : nullptr;
}

absl::StatusOr<server::TaskRecord*> RunStore::FindAttempt(const server::TaskAttempt& attempt) {
  Live* live = FindJob(attempt.task);
  if (live == nullptr) return absl::NotFoundError("there is no such task");
  server::TaskRecord& task = live->record.tasks[attempt.task - live->record.tasks[0].id];
  if (task.state == TaskState::kRunning && task.attempt == attempt.attempt) return &task;
  return absl::FailedPreconditionError("the task is not running as that attempt");
}

absl::StatusOr<server::ClaimedTask> RunStore::Claim(uint64_t id) {
  const std::lock_guard lock(mutex_);
  Live* live = FindJob(id);
  if (live == nullptr) return absl::NotFoundError("there is no such task");
  server::TaskRecord& task = live->record.tasks[id - live->record.tasks[0].id];
  RETURN_IF_ERROR(CheckMove(task.state, TaskState::kRunning));
  task.state = TaskState::kRunning;
  task.started = Now();
  server::ClaimedTask claimed = {.claim = {.task = id, .attempt = ++task.attempt},
                                 .parameters = live->record.request->parameters};
  claimed.parameters.seed += static_cast<uint64_t>(task.index);
  return claimed;
}

absl::Status RunStore::End(uint64_t id, TaskState state, const absl::Status& error) {
  std::string key;
  std::vector<RunImage> images;
  absl::Status failure;
  TaskState before = TaskState::kQueued;
  {
    const std::lock_guard lock(mutex_);
    Live* live = FindJob(id);
    if (live == nullptr) return absl::NotFoundError("there is no such task");
    server::TaskRecord& task = live->record.tasks[id - live->record.tasks[0].id];
    before = std::exchange(task.state, state);
    task.error = error;
    task.ended = Now();
    if (!std::ranges::all_of(live->record.tasks, [](const auto& other) { return IsEnded(other.state); })) {
      return absl::OkStatus();
    }
    key = live->key;
    images = live->images;
    failure = ErrorOf(live->record);
  }
  if (!failure.ok()) images.clear();
  const absl::Status kept = events_.ended(key, images, failure);
  const std::lock_guard lock(mutex_);
  Live* live = FindJob(id);
  if (kept.ok()) {
    jobs_.erase(live->record.tasks[0].id);
    return kept;
  }
  server::TaskRecord& task = live->record.tasks[id - live->record.tasks[0].id];
  task.state = before;
  task.error = absl::OkStatus();
  task.ended.reset();
  events_.disk(kept);
  return kept;
}

absl::Status RunStore::Finish(const server::TaskAttempt& attempt, const std::string& file,
                              const server::ImageOrigin& origin) {
  RunImage image = {.width = origin.width, .height = origin.height, .bytes = file.size()};
  {
    const std::lock_guard lock(mutex_);
    ASSIGN_OR_RETURN(const server::TaskRecord* task, FindAttempt(attempt));
    const Live& live = *FindJob(attempt.task);
    int64_t item = 0;
    if (!absl::SimpleAtoi(live.key, &item)) return absl::InternalError("the key of the job is not an index");
    image.file = RunImageName(item, task->index, live.record.request->count, origin.format);
    image.seed = live.record.request->parameters.seed + static_cast<uint64_t>(task->index);
  }
  image.digest = absl::BytesToHexString(base::Sha256Of(file));
  if (const absl::Status written = folder_.WriteImage(image.file, file); !written.ok()) {
    events_.disk(written);
    return written;
  }
  {
    const std::lock_guard lock(mutex_);
    ASSIGN_OR_RETURN(const server::TaskRecord* task, FindAttempt(attempt));
    FindJob(attempt.task)->images[static_cast<size_t>(task->index)] = image;
  }
  result_bytes_ += static_cast<int64_t>(image.bytes);
  return End(attempt.task, TaskState::kDone, absl::OkStatus());
}

absl::Status RunStore::Fail(const server::TaskAttempt& attempt, const absl::Status& error, const server::KeyUsage&) {
  {
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(FindAttempt(attempt).status());
  }
  return End(attempt.task, TaskState::kFailed, error);
}

absl::Status RunStore::FailQueued(uint64_t id, const absl::Status& error) {
  {
    const std::lock_guard lock(mutex_);
    const Live* live = FindJob(id);
    if (live == nullptr) return absl::NotFoundError("there is no such task");
    if (live->record.tasks[id - live->record.tasks[0].id].state != TaskState::kQueued) {
      return absl::FailedPreconditionError("the task is not queued");
    }
  }
  return End(id, TaskState::kFailed, error);
}

absl::Status RunStore::GiveBack(absl::Span<const server::TaskAttempt> attempts) {
  const std::lock_guard lock(mutex_);
  for (const server::TaskAttempt& attempt : attempts) {
    if (const absl::StatusOr<server::TaskRecord*> task = FindAttempt(attempt); task.ok()) {
      (*task)->state = TaskState::kQueued;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<server::Verdict>> RunStore::GroupDied(absl::Span<const server::TaskAttempt> attempts,
                                                                 const std::string& reason) {
  std::vector<server::Verdict> verdicts;
  std::vector<std::pair<uint64_t, absl::Status>> quarantined;
  {
    const std::lock_guard lock(mutex_);
    for (const server::TaskAttempt& attempt : attempts) {
      const absl::StatusOr<server::TaskRecord*> found = FindAttempt(attempt);
      if (!found.ok()) continue;
      server::TaskRecord& task = **found;
      task.blame = AfterDeath(task.blame, attempts.size() == 1);
      server::Verdict verdict = {.attempt = attempt, .blame = task.blame};
      if (MustBeQuarantined(task.blame)) {
        verdict.state = TaskState::kQuarantined;
        quarantined.emplace_back(attempt.task,
                                 absl::AbortedError(absl::StrCat("the worker ended ", task.blame.deaths,
                                                                 " times while it made this image alone: ", reason)));
      } else {
        task.state = TaskState::kQueued;
      }
      verdicts.push_back(verdict);
    }
  }
  for (const auto& [task, error] : quarantined) RETURN_IF_ERROR(End(task, TaskState::kQuarantined, error));
  return verdicts;
}

absl::StatusOr<server::JobRecord> RunStore::Cancel(const std::string& tenant, const std::string& job) {
  return absl::FailedPreconditionError("items of a run cannot be cancelled");
}

absl::StatusOr<server::JobRecord> RunStore::Get(const std::string&, const std::string& job) {
  const std::lock_guard lock(mutex_);
  for (const auto& [first, live] : jobs_) {
    if (live.record.id == job) return live.record;
  }
  return absl::NotFoundError("there is no such job, or it has ended");
}

}  // namespace tessera::client
