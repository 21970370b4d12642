#include "server/scheduling/request_scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera {

const ModelCost& RequestScheduler::CostOfModel(const std::string& model) const {
  static constexpr ModelCost kUnknown;
  const auto cost = models_.find(model);
  return cost == models_.end() ? kUnknown : cost->second;
}

void RequestScheduler::AddWaiting(ScheduledTask& task) {
  waiting_[task.spec.shape.model].Add(task.spec.key, task.ClassOf(), task.order, task.TotalFlops());
  if (task.spec.deadline) deadlines_.emplace(*task.spec.deadline, task.spec.id);
  enqueued_.emplace_hint(enqueued_.end(), task.spec.enqueued, task.spec.id);  // it is nearly always the last
  ++waiting_tasks_;
}

void RequestScheduler::RemoveWaiting(ScheduledTask& task) {
  if (task.held_by) groups_.at(*task.held_by).holds.reset();
  task.held_by.reset();
  waiting_[task.spec.shape.model].Remove(task.spec.key, task.ClassOf(), task.order, task.TotalFlops());
  if (task.spec.deadline) deadlines_.erase({*task.spec.deadline, task.spec.id});
  enqueued_.erase({task.spec.enqueued, task.spec.id});
  --waiting_tasks_;
}

void RequestScheduler::ReleaseHeld(ScheduledGroup& group) {
  if (!group.holds) return;
  Find(*group.holds)->held_by.reset();
  group.holds.reset();
}

void RequestScheduler::Forget(TaskId id) {
  const ScheduledTask& task = *Find(id);
  KeyState& key = KeyOf(task.spec.key);
  --key.live;
  key.flops -= task.RemainingFlops();
  // What was charged and not done is given back.
  const bool decoded = task.phase == TaskPhase::kDecoding;
  const double done = task.charged == 0 ? 0 : task.issued * task.step_flops + (decoded ? task.decode_flops : 0);
  key.charged -= task.charged - done;
  key.virtual_time -= (task.charged - done) / task.charged_weight;
  tasks_.erase(id);
}

void RequestScheduler::SetModel(const std::string& model, const ModelCost& cost) { models_[model] = cost; }

void RequestScheduler::SetWeights(const std::map<std::string, double>& weights) {
  for (auto& [name, key] : keys_) key.weight = 1;
  for (const auto& [name, weight] : weights) {
    if (weight > 0 && std::isfinite(weight)) KeyOf(name).weight = weight;
  }
}

void RequestScheduler::SetBounds(int64_t max_waiting, absl::Duration max_expected_wait) {
  options_.max_waiting = max_waiting;
  options_.max_expected_wait = max_expected_wait;
}

void RequestScheduler::AddGroup(const GroupDescription& group) {
  const double speed = options_.initial_flops_per_second * std::max(1, group.ranks);
  groups_.insert_or_assign(group.id, ScheduledGroup{.description = group, .speed = LearnedSpeed(1 / speed)});
}

void RequestScheduler::RemoveGroup(GroupId id) {
  const ScheduledGroup* group = FindGroup(id);
  if (group != nullptr && group->residents.empty() && !group->ready) groups_.erase(id);
}

bool RequestScheduler::IsEmpty(GroupId id) const {
  const ScheduledGroup* group = FindGroup(id);
  return group == nullptr || group->residents.empty();
}

absl::Status RequestScheduler::Enqueue(const SchedulerTask& spec, absl::Time now, uint64_t ticket) {
  if (spec.id == 0 || spec.key.empty() || spec.steps < 1 || spec.shape.rows < 1 || spec.shape.height < 1 ||
      spec.shape.width < 1) {
    return absl::InvalidArgumentError("a task has an id, a key, a size, a row and a step");
  }
  if (Find(spec.id) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("task ", spec.id, " is scheduled already"));
  }
  const auto promise = tickets_.find(ticket);
  if (ticket != 0 && (promise == tickets_.end() || promise->second.key != spec.key)) {
    return absl::FailedPreconditionError("the ticket is not one of this key, or it was used up");
  }
  if (ticket != 0) {
    KeyState& key = KeyOf(spec.key);
    --promised_tasks_;
    --key.promised;
    key.flops -= promise->second.flops;
    if (--promise->second.tasks == 0) tickets_.erase(promise);
  }
  const ModelCost& cost = CostOfModel(spec.shape.model);
  ScheduledTask task{
      .spec = spec, .step_flops = StepFlops(cost, spec.shape), .decode_flops = DecodeFlops(cost, spec.shape)};
  if (task.spec.enqueued > now) task.spec.enqueued = now;
  const SchedulerOptions& options = options_;
  absl::Time due = task.spec.enqueued + options.patience - spec.priority * options.priority_step;
  if (spec.deadline) {
    const double throughput = Throughput(spec.shape.model);
    const absl::Duration takes = throughput > 0 ? absl::Seconds(task.TotalFlops() / throughput) : absl::ZeroDuration();
    due = std::min(due, *spec.deadline - takes);
  }
  task.order = {.due = due, .sequence = next_number_++, .id = spec.id};
  KeyState& key = KeyOf(spec.key);
  if (key.live == 0) key.virtual_time = std::max(key.virtual_time, served_virtual_time_);
  ++key.live;
  key.flops += task.TotalFlops();
  AddWaiting(tasks_.emplace(spec.id, std::move(task)).first->second);
  may_hold_too_large_ |= !CouldEverRun(spec.shape);  // it was admitted before the memory was known
  return absl::OkStatus();
}

bool RequestScheduler::Cancel(TaskId id) {
  ScheduledTask* task = Find(id);
  if (task == nullptr) return false;
  if (task->phase != TaskPhase::kWaiting) {
    task->cancelled = true;
    return false;
  }
  RemoveWaiting(*task);
  Forget(id);
  return true;
}

std::vector<TaskId> RequestScheduler::TakeExpired(absl::Time now) {
  std::vector<TaskId> expired;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const TaskId id = deadlines_.begin()->second;
    RemoveWaiting(*Find(id));
    Forget(id);
    expired.push_back(id);
  }
  return expired;
}

std::vector<std::pair<TaskId, absl::Status>> RequestScheduler::TakeTooLarge() {
  std::vector<std::pair<TaskId, absl::Status>> taken;
  if (!std::exchange(may_hold_too_large_, false)) return taken;
  for (const auto& [model, queue] : waiting_) {
    queue.VisitClasses([&](const WaitingClass& of, const WaitingTasks::Ordered& tasks) {
      // Where the model has no group at all it may have one again.
      const absl::Status fits = CheckFits(of.shape);
      if (!absl::IsInvalidArgument(fits)) return;
      for (const WaitingTask& task : tasks) taken.emplace_back(task.id, fits);
    });
  }
  for (const auto& [id, reason] : taken) {
    RemoveWaiting(*Find(id));
    Forget(id);
  }
  return taken;
}

std::vector<TaskId> RequestScheduler::TakeModel(const std::string& model) {
  std::vector<TaskId> taken;
  const auto queue = waiting_.find(model);
  if (queue == waiting_.end()) return taken;
  queue->second.VisitClasses([&](const WaitingClass&, const WaitingTasks::Ordered& tasks) {
    for (const WaitingTask& task : tasks) taken.push_back(task.id);
  });
  for (const TaskId id : taken) {
    RemoveWaiting(*Find(id));
    Forget(id);
  }
  return taken;
}

std::vector<TaskId> RequestScheduler::TakeOverdue() { return std::exchange(overdue_, {}); }

void RequestScheduler::EndOverdue(absl::Time now) {
  for (const auto& [id, group] : groups_) EndOverdue(group, now);
}

bool RequestScheduler::IsAbandoned(GroupId id) const {
  const ScheduledGroup* group = FindGroup(id);
  return group != nullptr && !group->retired && !group->residents.empty() &&
         std::ranges::all_of(group->residents, [&](TaskId task) { return Find(task)->cancelled; });
}

absl::Duration RequestScheduler::LeastTimeInFlight(GroupId id) const {
  const ScheduledGroup* group = FindGroup(id);
  double seconds = 0;
  if (group == nullptr) return absl::ZeroDuration();
  for (const StepInFlight& step : group->in_flight) seconds += LeastSeconds(*group, step.shape, step.flops);
  return absl::Seconds(seconds);
}

void RequestScheduler::Retire(GroupId id) {
  ScheduledGroup* group = FindGroup(id);
  if (group == nullptr || !group->ready) return;
  ReleaseHeld(*group);
  group->retired = true;
}

void RequestScheduler::OnStarted(GroupId group, TaskId id) {
  ScheduledTask* task = Find(id);
  if (task != nullptr && task->group == group && task->phase == TaskPhase::kStarting) task->phase = TaskPhase::kActive;
}

void RequestScheduler::KeepApart(GroupId id, const ShapeClass& shape) {
  ScheduledGroup* group = FindGroup(id);
  if (group == nullptr || !group->ready) return;
  group->apart.insert(shape);
  bool one = false;
  for (const TaskId task : Batch(*group)) {
    if (Find(task)->spec.shape == shape && std::exchange(one, true)) Find(task)->phase = TaskPhase::kParked;
  }
}

void RequestScheduler::OnStepped(GroupId id, double seconds) {
  ScheduledGroup* group = FindGroup(id);
  if (group == nullptr || group->in_flight.empty()) return;
  const StepInFlight& step = group->in_flight.front();
  group->speed.Observe(step.shape, step.flops, seconds);
  group->in_flight.pop_front();
}

void RequestScheduler::OnEnded(GroupId id, TaskId task_id, absl::Time) {
  ScheduledGroup* group = FindGroup(id);
  const ScheduledTask* task = Find(task_id);
  if (group == nullptr || task == nullptr || task->phase == TaskPhase::kWaiting || task->group != id) return;
  group->residents.erase(std::find(group->residents.begin(), group->residents.end(), task_id));
  Forget(task_id);
}

void RequestScheduler::SetMemory(GroupId id, double bytes) {
  ScheduledGroup* group = FindGroup(id);
  if (group == nullptr) return;
  group->description.memory_bytes = bytes;
  may_hold_too_large_ = true;
}

void RequestScheduler::SetFreeMemory(GroupId id, double bytes) {
  if (ScheduledGroup* group = FindGroup(id); group != nullptr) group->description.free_bytes = bytes;
}

void RequestScheduler::OnGroupReady(GroupId id, absl::Time) {
  ScheduledGroup* group = FindGroup(id);
  if (group == nullptr) return;
  group->ready = true;
  group->draining = group->retired = false;
  group->apart.clear();
}

std::vector<TaskId> RequestScheduler::OnGroupDied(GroupId id) {
  ScheduledGroup* group = FindGroup(id);
  if (group == nullptr) return {};
  ReleaseHeld(*group);
  group->ready = group->retired = false;
  group->in_flight.clear();
  std::vector<TaskId> residents = std::exchange(group->residents, {});
  for (TaskId task : residents) {
    // The work is lost: all of it is given back to the key.
    KeyOf(Find(task)->spec.key).flops += Find(task)->issued * Find(task)->step_flops;
    Find(task)->issued = 0;
    Find(task)->phase = TaskPhase::kLeaving;
    Forget(task);
  }
  return residents;
}

void RequestScheduler::Drain(GroupId id) {
  if (ScheduledGroup* group = FindGroup(id)) group->draining = true;
}

std::optional<absl::Time> RequestScheduler::OldestWaiting() const {
  if (enqueued_.empty()) return std::nullopt;
  return enqueued_.begin()->first;
}

int64_t RequestScheduler::waiting() const { return waiting_tasks_; }

int64_t RequestScheduler::resident() const {
  int64_t count = 0;
  for (const auto& [id, group] : groups_) count += static_cast<int64_t>(group.residents.size());
  return count;
}

std::map<std::string, double> RequestScheduler::Charged() const {
  std::map<std::string, double> charged;
  for (const auto& [key, state] : keys_) charged[key] = state.charged;
  return charged;
}

}  // namespace tessera
