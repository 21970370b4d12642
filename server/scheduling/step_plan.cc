// What a group does next.
#include <algorithm>
#include <utility>

#include "base/planted.h"
#include "server/scheduling/request_scheduler.h"

namespace tessera {

bool RequestScheduler::Fits(const ScheduledGroup& group, const ShapeClass& shape, int32_t count) const {
  const GroupDescription& description = group.description;
  // A single task is never refused for its rows: branches can also be run one after another.
  if (count > 1 && (int64_t{count} * shape.rows > description.max_rows || group.apart.contains(shape))) return false;
  const ModelCost& cost = CostOfModel(shape.model);
  const double peak = PeakBytes(cost, shape, count, description.share);
  if (description.memory_bytes > 0 && peak > description.memory_bytes) return false;
  // A batch may also take what one of its tasks takes alone.
  return count == 1 || description.free_bytes == 0 ||
         peak <= std::max(description.free_bytes, PeakBytes(cost, shape, 1, description.share));
}

bool RequestScheduler::IsLargeFor(const ScheduledGroup& group, const ShapeClass& shape) const {
  if (!Fits(group, shape, 1)) return true;
  const double seconds = StepFlops(CostOfModel(shape.model), shape) * group.speed.SecondsPerFlop(shape);
  return seconds > absl::ToDoubleSeconds(options_.large_step);
}

bool RequestScheduler::IsLargeForSmaller(const ScheduledGroup& group, const ShapeClass& shape) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const auto& entry) {
    const ScheduledGroup& other = entry.second;
    return other.ready && other.description.model == group.description.model &&
           other.description.ranks < group.description.ranks && IsLargeFor(other, shape);
  });
}

double RequestScheduler::Seconds(const ScheduledGroup& group, const ScheduledTask& task) const {
  return task.RemainingFlops() * group.speed.SecondsPerFlop(task.spec.shape);
}

double RequestScheduler::LeastSeconds(const ScheduledGroup& group, const ShapeClass& shape, double flops) {
  return flops * group.speed.LeastSecondsPerFlop(shape, 1 / group.description.most_flops_per_second);
}

bool RequestScheduler::Suits(const ScheduledGroup& group, const ScheduledTask& task) const {
  if (!IsLargeFor(group, task.spec.shape)) return true;
  const auto large = [&](const WaitingClass& of) { return IsLargeFor(group, of.shape); };
  const auto queue = waiting_.find(group.description.model);
  const double here = Seconds(group, task);
  for (const auto& [id, other] : groups_) {
    if (!other.ready || other.draining || other.retired || other.description.model != group.description.model ||
        other.description.ranks <= group.description.ranks || !Fits(other, task.spec.shape, 1)) {
      continue;
    }
    double backlog = queue == waiting_.end() ? 0 : queue->second.Flops(large);  // this task among them
    for (TaskId resident : other.residents) backlog += Find(resident)->RemainingFlops();
    if (backlog * other.speed.SecondsPerFlop(task.spec.shape) < here) return false;
  }
  return true;
}

std::optional<TaskId> RequestScheduler::PickAmong(const ScheduledGroup& group,
                                                  absl::FunctionRef<bool(const WaitingClass&)> class_passes) const {
  const auto queue = waiting_.find(group.description.model);
  if (queue == waiting_.end()) return std::nullopt;
  std::vector<std::pair<double, std::string>> order;
  queue->second.VisitKeys(
      [&](const std::string& key, int64_t) { order.emplace_back(keys_.at(key).virtual_time, key); });
  std::sort(order.begin(), order.end());
  if (Planted("fair_share_inverted")) std::reverse(order.begin(), order.end());
  const auto fitting = [&](const WaitingClass& of) { return class_passes(of) && Fits(group, of.shape, 1); };
  const auto free = [&](uint64_t id) {
    const ScheduledTask& task = *Find(id);
    // Another group empties itself for it; one that is empty already is sooner.
    const bool held = task.held_by && *task.held_by != group.description.id && !group.residents.empty();
    return !held && Suits(group, task);
  };
  for (const auto& [virtual_time, key] : order) {
    if (const std::optional<uint64_t> task = queue->second.Earliest(key, fitting, free)) return task;
  }
  return std::nullopt;
}

std::optional<TaskId> RequestScheduler::Pick(const ScheduledGroup& group, const ShapeClass* only) const {
  if (only != nullptr) {
    return PickAmong(group, [&](const WaitingClass& of) { return !of.alone && of.shape == *only; });
  }
  const auto queue = waiting_.find(group.description.model);
  if (queue == waiting_.end()) return std::nullopt;
  if (queue->second.has_alone()) {
    if (const auto task = PickAmong(group, [](const WaitingClass& of) { return of.alone; })) return task;
  }
  const auto task = PickAmong(group, [&](const WaitingClass& of) { return IsLargeForSmaller(group, of.shape); });
  if (task) return task;
  return PickAmong(group, [](const WaitingClass&) { return true; });
}

std::vector<TaskId> RequestScheduler::InPhase(const ScheduledGroup& group, TaskPhase phase) const {
  std::vector<TaskId> found;
  for (TaskId id : group.residents) {
    if (Find(id)->phase == phase) found.push_back(id);
  }
  return found;
}

std::vector<TaskId> RequestScheduler::Batch(const ScheduledGroup& group) const {
  std::vector<TaskId> found;
  for (TaskId id : group.residents) {
    const TaskPhase phase = Find(id)->phase;
    if (phase == TaskPhase::kStarting || phase == TaskPhase::kActive) found.push_back(id);
  }
  return found;
}

void RequestScheduler::EndOverdue(const ScheduledGroup& group, absl::Time now) {
  for (TaskId id : group.residents) {
    ScheduledTask& task = *Find(id);
    if (task.cancelled || !task.spec.deadline || *task.spec.deadline > now) continue;
    task.cancelled = true;
    overdue_.push_back(id);
  }
}

void RequestScheduler::EndLeaving(ScheduledGroup& group, absl::Time now, StepPlan& plan) {
  EndOverdue(group, now);
  for (TaskId id : group.residents) {
    ScheduledTask& task = *Find(id);
    if (task.phase == TaskPhase::kDecoding || task.phase == TaskPhase::kLeaving || !task.cancelled) continue;
    task.phase = TaskPhase::kLeaving;
    plan.end.push_back(id);
  }
}

bool RequestScheduler::HasRoom(const ScheduledGroup& group, const ShapeClass& shape) const {
  return Fits(group, shape, static_cast<int32_t>(Batch(group).size()) + 1);
}

void RequestScheduler::ResumeParked(ScheduledGroup& group) {
  const std::vector<TaskId> parked = InPhase(group, TaskPhase::kParked);
  if (parked.empty()) return;
  const std::vector<TaskId> batch = Batch(group);
  const ShapeClass shape = Find(batch.empty() ? parked[0] : batch[0])->spec.shape;
  for (TaskId id : parked) {
    ScheduledTask& task = *Find(id);
    if (task.spec.shape == shape && HasRoom(group, shape)) task.phase = TaskPhase::kActive;
  }
}

bool RequestScheduler::MayBeOvertaken(const ScheduledGroup& group, const ScheduledTask& task, double seconds) const {
  const double length = task.TotalFlops() * group.speed.SecondsPerFlop(task.spec.shape);
  return task.overtaken_seconds + seconds <= options_.overtaken_share * length;
}

bool RequestScheduler::ParkedAllow(const ScheduledGroup& group, const ScheduledTask& task) const {
  const double seconds = Seconds(group, task);
  const std::vector<TaskId> parked = InPhase(group, TaskPhase::kParked);
  return std::all_of(parked.begin(), parked.end(),
                     [&](TaskId id) { return MayBeOvertaken(group, *Find(id), seconds); });
}

bool RequestScheduler::Overtake(ScheduledGroup& group, const ScheduledTask& task) {
  if (!ParkedAllow(group, task)) return false;
  const double seconds = Seconds(group, task);
  std::vector<TaskId> batch = Batch(group);
  const bool same_class = Find(batch[0])->spec.shape == task.spec.shape;
  // Of the same class, the longest make room; of another, all do.
  std::stable_sort(batch.begin(), batch.end(),
                   [&](TaskId a, TaskId b) { return Find(a)->RemainingFlops() > Find(b)->RemainingFlops(); });
  std::vector<TaskId> leaving;
  for (TaskId id : batch) {
    const ScheduledTask& running = *Find(id);
    if (running.phase != TaskPhase::kActive || Seconds(group, running) < options_.overtaking_ratio * seconds ||
        !MayBeOvertaken(group, running, seconds)) {
      return false;
    }
    leaving.push_back(id);
    const auto left = static_cast<int32_t>(batch.size() - leaving.size());
    if (same_class && Fits(group, task.spec.shape, left + 1)) break;
  }
  for (TaskId id : leaving) Find(id)->phase = TaskPhase::kParked;
  return true;
}

bool RequestScheduler::MayJoinInstead(const ScheduledTask& head, absl::Time now) const {
  return now - head.spec.enqueued < options_.join_patience;
}

void RequestScheduler::Start(ScheduledGroup& group, TaskId id, StepPlan& plan) {
  ScheduledTask& task = *Find(id);
  const double seconds = Seconds(group, task);
  for (TaskId parked : InPhase(group, TaskPhase::kParked)) Find(parked)->overtaken_seconds += seconds;
  RemoveWaiting(task);
  task.phase = TaskPhase::kStarting;
  task.group = group.description.id;
  group.residents.push_back(id);
  KeyState& key = KeyOf(task.spec.key);
  served_virtual_time_ = std::max(served_virtual_time_, key.virtual_time);
  task.charged = task.TotalFlops();
  task.charged_weight = key.weight;
  key.charged += task.charged;
  key.virtual_time += task.charged / key.weight;
  plan.start.push_back(id);
}

void RequestScheduler::FillBatch(ScheduledGroup& group, absl::Time now, StepPlan& plan) {
  ReleaseHeld(group);
  while (true) {
    ResumeParked(group);
    const std::vector<TaskId> batch = Batch(group);
    const bool shares =
        std::none_of(group.residents.begin(), group.residents.end(), [&](TaskId id) { return Find(id)->spec.alone; });
    if (group.draining || !shares) return;
    const std::optional<TaskId> head = Pick(group, nullptr);
    if (!head) return;
    ScheduledTask& task = *Find(*head);
    const auto hold = [&] {
      group.holds = *head;
      task.held_by = group.description.id;
    };
    if (task.spec.alone) {
      if (!group.residents.empty()) return hold();
      return Start(group, *head, plan);
    }
    const bool resident_room = static_cast<int32_t>(group.residents.size()) < options_.max_resident;
    if (batch.empty()) {
      // What is left is decoding or leaving.
      if (!resident_room || !ParkedAllow(group, task)) return;
      Start(group, *head, plan);
      continue;
    }
    const ShapeClass shape = Find(batch[0])->spec.shape;
    const bool joins = task.spec.shape == shape;
    if (!resident_room) return;
    if (joins && HasRoom(group, shape)) {
      if (!ParkedAllow(group, task)) return;
      Start(group, *head, plan);
      continue;
    }
    if (Overtake(group, task)) {
      Start(group, *head, plan);
      continue;
    }
    if (joins) return;
    if (!MayJoinInstead(task, now)) return hold();
    const std::optional<TaskId> other = Pick(group, &shape);
    if (!other || !HasRoom(group, shape) || !ParkedAllow(group, *Find(*other))) return;
    Start(group, *other, plan);
  }
}

void RequestScheduler::IssueStep(ScheduledGroup& group, StepPlan& plan) {
  plan.step = InPhase(group, TaskPhase::kActive);
  if (plan.step.empty()) return;
  StepInFlight step{.shape = Find(plan.step[0])->spec.shape};
  for (TaskId id : plan.step) {
    ScheduledTask& task = *Find(id);
    ++task.issued;
    step.flops += task.step_flops;
    KeyOf(task.spec.key).flops -= task.step_flops;
    if (task.issued < task.spec.steps) continue;
    task.phase = TaskPhase::kDecoding;
    plan.decode.push_back(id);
  }
  group.in_flight.push_back(std::move(step));
}

StepPlan RequestScheduler::Next(GroupId id, absl::Time now) {
  StepPlan plan;
  ScheduledGroup* group = FindGroup(id);
  if (group == nullptr || !group->ready || group->retired) return plan;
  EndLeaving(*group, now, plan);
  if (group->in_flight.size() >= kMaxStepsInFlight) return plan;
  FillBatch(*group, now, plan);
  IssueStep(*group, plan);
  plan.parked = InPhase(*group, TaskPhase::kParked);
  return plan;
}

}  // namespace tessera
