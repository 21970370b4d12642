#include "server/scheduling/group_batch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "control/protocol/job_limits.h"

namespace tessera::server {
namespace {

// A preempting task is at least this many times shorter than the rest of the batch.
constexpr double kPreemptingRatio = 4;
// The part of its own length for which a task may be preempted in total.
constexpr double kPreemptedShare = 0.5;

}  // namespace

std::vector<TaskId> GroupBatch::InPhase(TaskPhase phase) const {
  std::vector<TaskId> found;
  for (const TaskId id : group_.residents) {
    if (tasks_.Find(id)->phase == phase) found.push_back(id);
  }
  return found;
}

std::vector<TaskId> GroupBatch::Tasks() const {
  std::vector<TaskId> found;
  for (const TaskId id : group_.residents) {
    const TaskPhase phase = tasks_.Find(id)->phase;
    if (phase == TaskPhase::kStarting || phase == TaskPhase::kActive) found.push_back(id);
  }
  return found;
}

void GroupBatch::KeepApart(const ShapeClass& shape) {
  group_.apart.insert(shape);
  bool one = false;
  for (const TaskId id : Tasks()) {
    ScheduledTask& task = *tasks_.Find(id);
    if (task.spec.shape == shape && std::exchange(one, true)) task.phase = TaskPhase::kSuspended;
  }
}

bool GroupBatch::HasRoom(const ShapeClass& shape) const {
  return capacity_.MayShareBatch(group_, shape, static_cast<int32_t>(Tasks().size()) + 1);
}

void GroupBatch::ResumeSuspended() {
  const std::vector<TaskId> suspended = InPhase(TaskPhase::kSuspended);
  if (suspended.empty()) return;
  const std::vector<TaskId> batch = Tasks();
  const ShapeClass shape = tasks_.Find(batch.empty() ? suspended[0] : batch[0])->spec.shape;
  for (const TaskId id : suspended) {
    ScheduledTask& task = *tasks_.Find(id);
    if (task.spec.shape == shape && HasRoom(shape)) task.phase = TaskPhase::kActive;
  }
}

bool GroupBatch::MayBePreempted(const ScheduledTask& task, double seconds) const {
  const double length = task.TotalFlops() * group_.speed.SecondsPerFlop(task.spec.shape);
  return task.preempted_seconds + seconds <= kPreemptedShare * length;
}

bool GroupBatch::SuspendedAllow(const ScheduledTask& task) const {
  return std::ranges::all_of(InPhase(TaskPhase::kSuspended),
                             [&](TaskId id) { return MayBePreempted(*tasks_.Find(id), group_.Seconds(task)); });
}

bool GroupBatch::Preempt(const ScheduledTask& task) {
  if (!SuspendedAllow(task)) return false;
  const double seconds = group_.Seconds(task);
  std::vector<TaskId> batch = Tasks();
  const bool same_class = tasks_.Find(batch[0])->spec.shape == task.spec.shape;
  // For a task of the same class, the longest tasks leave until it fits; for another class, the whole batch leaves.
  std::ranges::stable_sort(batch, std::greater(), [&](TaskId id) { return tasks_.Find(id)->RemainingFlops(); });
  std::vector<TaskId> leaving;
  for (const TaskId id : batch) {
    const ScheduledTask& running = *tasks_.Find(id);
    if (running.phase != TaskPhase::kActive || group_.Seconds(running) < kPreemptingRatio * seconds ||
        !MayBePreempted(running, seconds)) {
      return false;
    }
    leaving.push_back(id);
    const auto left = static_cast<int32_t>(batch.size() - leaving.size());
    if (same_class && capacity_.MayShareBatch(group_, task.spec.shape, left + 1)) break;
  }
  for (const TaskId id : leaving) tasks_.Find(id)->phase = TaskPhase::kSuspended;
  return true;
}

void GroupBatch::Start(ScheduledTask& task, StepPlan& plan) {
  const double seconds = group_.Seconds(task);
  for (const TaskId suspended : InPhase(TaskPhase::kSuspended)) tasks_.Find(suspended)->preempted_seconds += seconds;
  tasks_.Start(task, group_.description.id);
  group_.residents.push_back(task.spec.id);
  plan.start.push_back(task.spec.id);
}

bool GroupBatch::StartOne(const TaskChoice& choice, absl::Time now, StepPlan& plan) {
  const bool isolated =
      std::ranges::any_of(group_.residents, [&](TaskId id) { return tasks_.Find(id)->spec.isolated; });
  if (group_.draining || isolated) return false;
  const std::optional<TaskId> head = choice.Pick(group_);
  if (!head) return false;
  ScheduledTask& task = *tasks_.Find(*head);
  const auto start = [&](ScheduledTask& started) {
    Start(started, plan);
    return true;
  };
  const auto hold = [&] {
    tasks_.Hold(task, group_.description.id);
    return false;
  };
  if (task.spec.isolated) return group_.residents.empty() ? start(task) : hold();
  if (static_cast<int32_t>(group_.residents.size()) >= options_.max_resident) return false;
  const std::vector<TaskId> batch = Tasks();
  // In a group without a batch, the remaining tasks are decoding or leaving.
  if (batch.empty()) return SuspendedAllow(task) && start(task);
  const ShapeClass shape = tasks_.Find(batch[0])->spec.shape;
  const bool joins = task.spec.shape == shape;
  if (joins && HasRoom(shape)) return SuspendedAllow(task) && start(task);
  if (Preempt(task)) return start(task);
  if (joins) return false;
  if (now - task.spec.enqueued >= options_.join_timeout) return hold();
  const std::optional<TaskId> other = choice.PickOf(group_, shape);
  return other && HasRoom(shape) && SuspendedAllow(*tasks_.Find(*other)) && start(*tasks_.Find(*other));
}

void GroupBatch::Fill(const TaskChoice& choice, absl::Time now, StepPlan& plan) {
  tasks_.ReleaseHeld(group_.description.id);
  do {
    ResumeSuspended();
  } while (StartOne(choice, now, plan));
}

int32_t GroupBatch::StepsTogether(const std::vector<TaskId>& tasks, double flops) const {
  const ShapeClass& shape = tasks_.Find(tasks[0])->spec.shape;
  if (!group_.speed.Knows(shape)) return 1;
  const double seconds = flops * group_.speed.SecondsPerFlop(shape);
  double count = std::min<double>(absl::ToDoubleSeconds(options_.steps_together) / seconds, control::kMaxStepsTogether);
  for (const TaskId id : tasks) {
    const ScheduledTask& task = *tasks_.Find(id);
    count = std::min<double>(count, task.spec.steps - task.issued);
  }
  return std::max(static_cast<int32_t>(count), 1);
}

void GroupBatch::IssueStep(KeyShares& keys, StepPlan& plan) {
  // Starting tasks take part in the next step, which is planned once they have started.
  if (!InPhase(TaskPhase::kStarting).empty()) return;
  plan.step = InPhase(TaskPhase::kActive);
  if (plan.step.empty()) return;
  StepsInFlight steps{.shape = tasks_.Find(plan.step[0])->spec.shape};
  for (const TaskId id : plan.step) steps.flops += tasks_.Find(id)->step_flops;
  steps.count = plan.steps = StepsTogether(plan.step, steps.flops);
  for (const TaskId id : plan.step) {
    ScheduledTask& task = *tasks_.Find(id);
    for (int32_t step = 0; step < plan.steps; ++step) keys.IssueStep(task);
    if (task.issued < task.spec.steps) continue;
    task.phase = TaskPhase::kDecoding;
    plan.decode.push_back(id);
  }
  group_.in_flight.push_back(std::move(steps));
}

}  // namespace tessera::server
