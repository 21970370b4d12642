#include "server/scheduling/task_table.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace tessera::server {

ScheduledTask* TaskTable::Find(TaskId id) {
  const auto task = tasks_.find(id);
  return task == tasks_.end() ? nullptr : &task->second;
}

void TaskTable::Add(const ScheduledTask& added) {
  const ScheduledTask& task = tasks_.emplace(added.spec.id, added).first->second;
  keys_.Add(task);
  waiting_[task.spec.shape.model].Add(task.spec.key, task.ClassOf(), task.order, task.TotalFlops());
  if (task.spec.deadline) deadlines_.emplace(*task.spec.deadline, task.spec.id);
  auto& enqueued = enqueued_[task.spec.shape.model];
  enqueued.emplace_hint(enqueued.end(), task.spec.enqueued, task.spec.id);  // almost always the last
  ++waiting_tasks_;
}

void TaskTable::RemoveWaiting(ScheduledTask& task) {
  if (task.held_by) held_.erase(*task.held_by);
  task.held_by.reset();
  waiting_[task.spec.shape.model].Remove(task.spec.key, task.ClassOf(), task.order, task.TotalFlops());
  if (task.spec.deadline) deadlines_.erase({*task.spec.deadline, task.spec.id});
  waiting_tasks_ -= static_cast<int64_t>(enqueued_[task.spec.shape.model].erase({task.spec.enqueued, task.spec.id}));
}

void TaskTable::Start(ScheduledTask& task, GroupId group) {
  RemoveWaiting(task);
  task.phase = TaskPhase::kStarting;
  task.group = group;
  keys_.Charge(task);
}

void TaskTable::Forget(ScheduledTask& task, bool lost) {
  if (task.phase == TaskPhase::kWaiting) RemoveWaiting(task);
  keys_.Remove(task, lost);
  tasks_.erase(TaskId{task.spec.id});
}

std::vector<TaskId> TaskTable::TakeExpired(absl::Time now) {
  std::vector<TaskId> expired;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    expired.push_back(deadlines_.begin()->second);
    Forget(*Find(expired.back()));
  }
  return expired;
}

std::vector<SchedulerTask> TaskTable::Take(absl::FunctionRef<bool(const ShapeClass&)> passes) {
  std::vector<SchedulerTask> taken;
  for (const auto& [model, queue] : waiting_) {
    queue.VisitClasses([&](const WaitingClass& of, const WaitingTasks::Ordered& tasks) {
      if (!passes(of.shape)) return;
      for (const WaitingTask& task : tasks) taken.push_back(Find(task.id)->spec);
    });
  }
  for (const SchedulerTask& task : taken) Forget(*Find(task.id));
  return taken;
}

void TaskTable::Hold(ScheduledTask& task, GroupId group) {
  held_[group] = task.spec.id;
  task.held_by = group;
}

void TaskTable::ReleaseHeld(GroupId group) {
  const auto held = held_.find(group);
  if (held == held_.end()) return;
  Find(held->second)->held_by.reset();
  held_.erase(held);
}

const WaitingTasks& TaskTable::Waiting(const std::string& model) const {
  static const WaitingTasks kNone;
  const auto queue = waiting_.find(model);
  return queue == waiting_.end() ? kNone : queue->second;
}

std::optional<absl::Time> TaskTable::OldestWaiting(const std::string& model) const {
  const auto enqueued = enqueued_.find(model);
  if (enqueued == enqueued_.end() || enqueued->second.empty()) return std::nullopt;
  return enqueued->second.begin()->first;
}

absl::Status TaskTable::CheckInvariants(int64_t running) const {
  std::map<std::string, KeyShares::Key> counted;
  int64_t waiting = 0, queued = 0;
  for (const auto& [id, task] : tasks_) {
    if (task.phase == TaskPhase::kWaiting) {
      ++waiting;
      if (task.issued != 0) return absl::InternalError(absl::StrCat("task ", id, " is waiting and has steps"));
      const auto enqueued = enqueued_.find(task.spec.shape.model);
      if (enqueued == enqueued_.end() || !enqueued->second.contains({task.spec.enqueued, id})) {
        return absl::InternalError(absl::StrCat("task ", id, " is waiting and has no time of enqueueing"));
      }
    }
    if (task.issued > task.spec.steps) return absl::InternalError(absl::StrCat("task ", id, " has too many steps"));
    ++counted[task.spec.key].live;
    counted[task.spec.key].flops += task.RemainingFlops();
  }
  for (const auto& [model, queue] : waiting_) queued += queue.size();
  if (static_cast<int64_t>(tasks_.size()) != waiting + running)
    return absl::InternalError("a task is neither waiting nor running");
  if (queued != waiting) return absl::InternalError("the queues do not hold all waiting tasks");
  if (this->waiting() != waiting) return absl::InternalError("a task that is not waiting has a time of enqueueing");
  for (const auto& [group, id] : held_) {
    const ScheduledTask* task = Find(id);
    if (task == nullptr || task->phase != TaskPhase::kWaiting || task->held_by != group) {
      return absl::InternalError(absl::StrCat("group ", group, " holds a task that is not waiting for it"));
    }
  }
  for (const auto& [name, key] : keys_.all()) {
    const double flops = counted[name].flops;
    if (key.live != counted[name].live)
      return absl::InternalError(absl::StrCat("the tasks of key ", name, " are miscounted"));
    if (std::abs(key.flops - flops) > 1e-6 * (1 + std::abs(flops) + key.charged)) {
      return absl::InternalError(absl::StrCat("the operations of key ", name, " are miscounted"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::server
