#include "server/scheduling/request_scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/model/model_cost.h"

namespace tessera::server {
namespace {

// Of a task without a deadline, after it was enqueued.
constexpr absl::Duration kDueAfter = absl::Seconds(60);
// By which each level of priority makes a task due earlier.
constexpr absl::Duration kPriorityStep = absl::Seconds(30);

}  // namespace

void RequestScheduler::SetMemory(GroupId id, double bytes, const std::string& limit) {
  ScheduledGroup* group = groups_.Find(id);
  if (group == nullptr) return;
  group->description.memory_bytes = bytes;
  group->description.memory_limit = limit;
  may_hold_too_large_ = true;
}

void RequestScheduler::SetFreeMemory(GroupId id, double bytes) {
  if (ScheduledGroup* group = groups_.Find(id); group != nullptr) group->description.free_bytes = bytes;
}

absl::Status RequestScheduler::Enqueue(const SchedulerTask& spec, absl::Time now, uint64_t ticket) {
  if (spec.id == 0 || spec.key.empty() || spec.steps < 1 || spec.shape.rows < 1 || spec.shape.height < 1 ||
      spec.shape.width < 1) {
    return absl::InvalidArgumentError("a task has an id, a key, a size, a row and a step");
  }
  if (tasks_.Find(spec.id) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("task ", spec.id, " is scheduled already"));
  }
  if (ticket != 0) RETURN_IF_ERROR(admission_.Redeem(ticket, spec.key));
  const control::ModelCost& cost = capacity_.CostOf(spec.shape.model);
  ScheduledTask task{.spec = spec,
                     .step_flops = control::StepFlops(cost, spec.shape.work()),
                     .codec_flops = capacity_.CodecFlops(spec.shape)};
  task.spec.enqueued = std::min(spec.enqueued, now);
  absl::Time due = task.spec.enqueued + kDueAfter - spec.priority * kPriorityStep;
  if (spec.deadline) {
    const double throughput = capacity_.Throughput(spec.shape.model);
    const absl::Duration takes = throughput > 0 ? absl::Seconds(task.TotalFlops() / throughput) : absl::ZeroDuration();
    due = std::min(due, *spec.deadline - takes);
  }
  task.order = {.due = due, .sequence = next_sequence_++, .id = spec.id};
  tasks_.Add(task);
  may_hold_too_large_ |= !capacity_.CouldEverRun(spec.shape);  // it was admitted before the memory was known
  return absl::OkStatus();
}

bool RequestScheduler::Cancel(TaskId id) {
  ScheduledTask* task = tasks_.Find(id);
  if (task == nullptr) return false;
  const bool waits = task->phase == TaskPhase::kWaiting;
  if (waits) {
    tasks_.Forget(*task);
  } else {
    task->cancelled = true;
  }
  return waits;
}

std::vector<std::pair<TaskId, absl::Status>> RequestScheduler::TakeTooLarge() {
  std::vector<std::pair<TaskId, absl::Status>> taken;
  if (!std::exchange(may_hold_too_large_, false)) return taken;
  // Tasks of a model without any group stay, because a group may be added again.
  const auto too_large = [&](const ShapeClass& shape) { return absl::IsInvalidArgument(capacity_.CheckFits(shape)); };
  for (const SchedulerTask& task : tasks_.Take(too_large)) taken.emplace_back(task.id, capacity_.CheckFits(task.shape));
  return taken;
}

std::vector<TaskId> RequestScheduler::TakeModel(const std::string& model) {
  std::vector<TaskId> taken;
  for (const SchedulerTask& task : tasks_.Take([&](const ShapeClass& shape) { return shape.model == model; })) {
    taken.push_back(task.id);
  }
  return taken;
}

absl::Status RequestScheduler::CheckInvariants() const {
  RETURN_IF_ERROR(steps_.CheckInvariants());
  RETURN_IF_ERROR(tasks_.CheckInvariants(groups_.resident()));
  return admission_.CheckInvariants();
}

}  // namespace tessera::server
