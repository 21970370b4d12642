#include "server/scheduling/task_choice.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/macros/planted.h"

namespace tessera::server {

bool TaskChoice::Suits(const ScheduledGroup& group, const ScheduledTask& task) const {
  const ShapeClass& shape = task.spec.shape;
  if (!capacity_.IsLargeFor(group, shape)) return true;
  const std::string& model = group.description.model;
  const auto large = [&](const WaitingClass& of) { return capacity_.IsLargeFor(group, of.shape); };
  const double here = group.Seconds(task);
  for (const auto& [id, other] : groups_.all()) {
    if (!other.ready || other.draining || other.retired || other.description.model != model ||
        other.description.ranks <= group.description.ranks || !capacity_.Fits(other, shape, 1)) {
      continue;
    }
    double backlog = tasks_.Waiting(model).Flops(large);  // includes this task
    for (const TaskId resident : other.residents) backlog += tasks_.Find(resident)->RemainingFlops();
    if (backlog * other.speed.SecondsPerFlop(shape) < here) return false;
  }
  return true;
}

std::optional<TaskId> TaskChoice::PickAmong(const ScheduledGroup& group,
                                            absl::FunctionRef<bool(const WaitingClass&)> class_passes) const {
  const WaitingTasks& queue = tasks_.Waiting(group.description.model);
  std::vector<std::pair<double, std::string>> order;
  queue.VisitKeys([&](const std::string& key, int64_t) { order.emplace_back(keys_.Of(key).virtual_time, key); });
  std::sort(order.begin(), order.end());
  if (base::Planted("fair_share_inverted")) std::reverse(order.begin(), order.end());
  const auto fitting = [&](const WaitingClass& of) { return class_passes(of) && capacity_.Fits(group, of.shape, 1); };
  const auto free = [&](uint64_t id) {
    const ScheduledTask& task = *tasks_.Find(id);
    // Another group empties itself for this task; a group that is already empty can take it sooner.
    const bool held = task.held_by && *task.held_by != group.description.id && !group.residents.empty();
    return !held && Suits(group, task);
  };
  for (const auto& [virtual_time, key] : order) {
    if (const std::optional<TaskId> task = queue.Earliest(key, fitting, free)) return task;
  }
  return std::nullopt;
}

std::optional<TaskId> TaskChoice::Pick(const ScheduledGroup& group) const {
  if (tasks_.Waiting(group.description.model).has_isolated()) {
    if (const auto task = PickAmong(group, [](const WaitingClass& of) { return of.isolated; })) return task;
  }
  const auto large = [&](const WaitingClass& of) { return capacity_.IsLargeForSmaller(group, of.shape); };
  if (const auto task = PickAmong(group, large)) return task;
  return PickAmong(group, [](const WaitingClass&) { return true; });
}

std::optional<TaskId> TaskChoice::PickOf(const ScheduledGroup& group, const ShapeClass& shape) const {
  return PickAmong(group, [&](const WaitingClass& of) { return !of.isolated && of.shape == shape; });
}

}  // namespace tessera::server
