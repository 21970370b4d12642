#include "server/jobs/task_state.h"

#include "absl/strings/str_cat.h"

namespace tessera::server {

absl::string_view TaskStateName(TaskState state) {
  switch (state) {
    case TaskState::kQueued:
      return "queued";
    case TaskState::kRunning:
      return "running";
    case TaskState::kDone:
      return "done";
    case TaskState::kFailed:
      return "failed";
    case TaskState::kCancelled:
      return "cancelled";
    case TaskState::kQuarantined:
      return "quarantined";
  }
  return "unknown";
}

absl::Status CheckMove(TaskState from, TaskState to) {
  bool valid = false;
  if (from == TaskState::kQueued) {
    valid = to == TaskState::kRunning || to == TaskState::kFailed || to == TaskState::kCancelled;
  } else if (from == TaskState::kRunning) {
    valid = to != TaskState::kRunning;
  }
  if (valid) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("a task that is ", TaskStateName(from), " cannot become ", TaskStateName(to)));
}

Blame AfterDeath(const Blame& before, bool was_isolated) {
  return {.deaths = before.deaths + (was_isolated ? 1 : 0), .isolated = true};
}

}  // namespace tessera::server
