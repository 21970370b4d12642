#include "tests/jobs/job_workload.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/new_job.h"

namespace tessera {

server::JobRequest SmallRequest(int32_t count) {
  server::JobRequest request{.model = "emoji", .count = count};
  request.parameters.prompt = "red apple";
  request.parameters.height = request.parameters.width = 64;
  request.parameters.steps = 4;
  request.parameters.guidance_scale = 4.5;
  request.parameters.seed = 7;
  return request;
}

JobWorkload::JobWorkload(server::JobStore& store, uint64_t seed, std::function<void(const Ack&)> hear)
    : store_(store), random_(seed), hear_(std::move(hear)) {}

void JobWorkload::Adopt(uint64_t task, const std::string& job) { queued_.push_back({.task = task, .job = job}); }

bool JobWorkload::Step() {
  switch (random_() % 12) {
    case 0:
    case 1:
    case 2:
    case 3:
      return Submit();
    case 4:
    case 5:
    case 6:
      return Claim();
    case 7:
    case 8:
      return Finish();
    case 9:
      return random_() % 3 == 0 ? Fail() : Finish();
    case 10:
      return random_() % 2 == 0 ? GiveBack() : Die();
    default:
      return random_() % 4 == 0 ? Cancel() : Claim();
  }
}

bool JobWorkload::Drain() {
  while (!queued_.empty() || !running_.empty()) {
    if (!(running_.empty() ? Claim() : Finish())) return false;
  }
  return true;
}

bool JobWorkload::Submit() {
  const absl::StatusOr<server::SubmittedJob> submitted =
      store_.Submit({.tenant = kOracleTenant, .request = SmallRequest(1 + static_cast<int32_t>(random_() % 3))});
  if (!submitted.ok()) return false;
  for (const server::TaskRecord& task : submitted->job.tasks) {
    hear_({.kind = 'S', .task = task.id, .job = submitted->job.id});
    queued_.push_back({.task = task.id, .job = submitted->job.id});
  }
  return true;
}

bool JobWorkload::Claim() {
  if (queued_.empty()) return true;
  const Known task = queued_.front();
  const absl::StatusOr<server::ClaimedTask> claimed = store_.Claim(task.task);
  if (!claimed.ok()) return false;
  queued_.pop_front();
  running_.push_back({.attempt = claimed->claim, .job = task.job});
  return true;
}

JobWorkload::Running JobWorkload::TakeRunning() {
  std::swap(running_[random_() % running_.size()], running_.back());
  Running taken = std::move(running_.back());
  running_.pop_back();
  return taken;
}

bool JobWorkload::Finish() {
  if (running_.empty()) return true;
  const Running task = TakeRunning();
  const server::ImageOrigin origin = {
      .width = 64,
      .height = 64,
      .layout = "serial",
      .usage = {.key = kOracleTenant, .model = "emoji", .images = 1, .steps = kFinishedSteps}};
  const absl::Status status = store_.Finish(task.attempt, ImageBytesOf(task.attempt), origin);
  if (!status.ok()) {
    running_.push_back(task);
    return false;
  }
  hear_({.kind = 'D', .task = task.attempt.task, .attempt = task.attempt.attempt});
  return true;
}

bool JobWorkload::Fail() {
  if (running_.empty()) return true;
  const Running task = TakeRunning();
  const server::KeyUsage usage = {.key = kOracleTenant, .model = "emoji", .steps = kFailedSteps};
  if (!store_.Fail(task.attempt, absl::InternalError("the workload says so"), usage).ok()) {
    running_.push_back(task);
    return false;
  }
  hear_({.kind = 'F', .task = task.attempt.task});
  return true;
}

bool JobWorkload::GiveBack() {
  if (running_.empty()) return true;
  const Running task = TakeRunning();
  if (!store_.GiveBack({task.attempt}).ok()) {
    running_.push_back(task);
    return false;
  }
  queued_.push_back({.task = task.attempt.task, .job = task.job});
  return true;
}

bool JobWorkload::Die() {
  if (running_.size() < 2) return true;  // a task that runs alone would be blamed for the death
  std::vector<server::TaskAttempt> attempts;
  for (const Running& task : running_) attempts.push_back(task.attempt);
  if (!store_.GroupDied(attempts, "the workload says so").ok()) return false;
  for (const Running& task : running_) queued_.push_back({.task = task.attempt.task, .job = task.job});
  running_.clear();
  return true;
}

void JobWorkload::Forget(const std::string& job) {
  const auto of_job = [&](const auto& task) { return task.job == job; };
  queued_.erase(std::remove_if(queued_.begin(), queued_.end(), of_job), queued_.end());
  running_.erase(std::remove_if(running_.begin(), running_.end(), of_job), running_.end());
}

bool JobWorkload::Cancel() {
  if (queued_.empty() && running_.empty()) return true;
  const bool takes_running = queued_.empty() || (!running_.empty() && random_() % 2 == 0);
  const std::string job =
      takes_running ? running_[random_() % running_.size()].job : queued_[random_() % queued_.size()].job;
  const absl::StatusOr<server::JobRecord> cancelled = store_.Cancel(kOracleTenant, job);
  if (!cancelled.ok()) return false;
  for (const server::TaskRecord& task : cancelled->tasks) {
    if (task.state == server::TaskState::kCancelled) hear_({.kind = 'C', .task = task.id});
  }
  Forget(job);
  return true;
}

}  // namespace tessera
