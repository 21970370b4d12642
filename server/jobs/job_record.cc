#include "server/jobs/job_record.h"

#include <algorithm>

#include "server/api/job.h"

namespace tessera::server {

JobState StateOf(absl::Span<const TaskState> tasks) {
  const auto any = [&](TaskState state) { return std::find(tasks.begin(), tasks.end(), state) != tasks.end(); };
  if (any(TaskState::kRunning)) return JobState::kRunning;
  if (any(TaskState::kQueued)) {
    const bool begun = std::any_of(tasks.begin(), tasks.end(), [](TaskState state) { return IsEnded(state); });
    return begun ? JobState::kRunning : JobState::kQueued;
  }
  if (any(TaskState::kFailed) || any(TaskState::kQuarantined)) return JobState::kFailed;
  return any(TaskState::kCancelled) ? JobState::kCancelled : JobState::kDone;
}

JobState StateOf(const JobRecord& job) {
  std::vector<TaskState> states;
  for (const TaskRecord& task : job.tasks) states.push_back(task.state);
  return StateOf(states);
}

absl::Status ErrorOf(const JobRecord& job) {
  for (const TaskRecord& task : job.tasks) {
    if (!task.error.ok()) return task.error;
  }
  return absl::OkStatus();
}

QueuedTask QueuedTaskOf(const JobRecord& job, const TaskRecord& task) {
  return {.id = task.id,
          .index = task.index,
          .job = job.id,
          .tenant = job.tenant,
          .blame = task.blame,
          .created = job.created,
          .deadline = job.deadline,
          .trace_parent = job.trace_parent,
          .request = job.request.get()};
}

int64_t ImageBytesOf(const JobRecord& job) {
  int64_t bytes = 0;
  for (const TaskRecord& task : job.tasks) bytes += task.image ? static_cast<int64_t>(task.image->bytes) : 0;
  return bytes;
}

absl::Status ReasonOf(const absl::Status& error) {
  return error.ok() ? absl::InternalError("the image failed without a reason") : error;
}

}  // namespace tessera::server
