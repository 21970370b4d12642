#include "server/scheduling/step_planner.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::server {

StepPlan StepPlanner::Next(GroupId id, absl::Time now) {
  StepPlan plan;
  ScheduledGroup* group = groups_.Find(id);
  if (group == nullptr || !group->ready || group->retired) return plan;
  EndOverdue(*group, now);
  for (const TaskId resident : group->residents) {
    ScheduledTask& task = *tasks_.Find(resident);
    if (task.phase == TaskPhase::kDecoding || task.phase == TaskPhase::kLeaving || !task.cancelled) continue;
    task.phase = TaskPhase::kLeaving;
    plan.end.push_back(resident);
  }
  if (group->in_flight.size() >= kMaxStepsInFlight) return plan;
  GroupBatch batch(options_, capacity_, tasks_, *group);
  batch.Fill(TaskChoice(groups_, capacity_, tasks_, keys_), now, plan);
  batch.IssueStep(keys_, plan);
  plan.suspended = batch.InPhase(TaskPhase::kSuspended);
  return plan;
}

void StepPlanner::OnStarted(GroupId group, TaskId id, int32_t steps) {
  ScheduledTask* task = tasks_.Find(id);
  if (task == nullptr || task->group != group || task->phase != TaskPhase::kStarting) return;
  task->phase = TaskPhase::kActive;
  keys_.SetSteps(*task, steps);
}

void StepPlanner::OnStepped(GroupId id, double seconds) {
  ScheduledGroup* group = groups_.Find(id);
  if (group == nullptr || group->in_flight.empty()) return;
  StepsInFlight& steps = group->in_flight.front();
  group->speed.Observe(steps.shape, steps.flops, seconds);
  if (--steps.count == 0) group->in_flight.pop_front();
}

void StepPlanner::OnEnded(GroupId id, TaskId ended) {
  ScheduledGroup* group = groups_.Find(id);
  ScheduledTask* task = tasks_.Find(ended);
  if (group == nullptr || task == nullptr || task->phase == TaskPhase::kWaiting || task->group != id) return;
  group->residents.erase(std::ranges::find(group->residents, ended));
  tasks_.Forget(*task);
}

std::vector<TaskId> StepPlanner::OnGroupDied(GroupId id) {
  ScheduledGroup* group = groups_.Find(id);
  if (group == nullptr) return {};
  tasks_.ReleaseHeld(id);
  group->ready = group->retired = false;
  group->in_flight.clear();
  std::vector<TaskId> residents = std::exchange(group->residents, {});
  for (const TaskId task : residents) tasks_.Forget(*tasks_.Find(task), /*lost=*/true);
  return residents;
}

void StepPlanner::KeepApart(GroupId id, const ShapeClass& shape) {
  ScheduledGroup* group = groups_.Find(id);
  if (group == nullptr || !group->ready) return;
  GroupBatch(options_, capacity_, tasks_, *group).KeepApart(shape);
}

void StepPlanner::Retire(GroupId id) {
  ScheduledGroup* group = groups_.Find(id);
  if (group == nullptr || !group->ready) return;
  tasks_.ReleaseHeld(id);
  group->retired = true;
}

bool StepPlanner::IsAbandoned(GroupId id) const {
  const ScheduledGroup* group = groups_.Find(id);
  return group != nullptr && !group->retired && !group->residents.empty() &&
         std::ranges::all_of(group->residents, [&](TaskId task) { return tasks_.Find(task)->cancelled; });
}

void StepPlanner::EndOverdue(absl::Time now) {
  for (const auto& [id, group] : groups_.all()) EndOverdue(group, now);
}

void StepPlanner::EndOverdue(const ScheduledGroup& group, absl::Time now) {
  for (const TaskId id : group.residents) {
    ScheduledTask& task = *tasks_.Find(id);
    if (task.cancelled || !task.spec.deadline || *task.spec.deadline > now) continue;
    task.cancelled = true;
    overdue_.push_back(id);
  }
}

std::vector<TaskId> StepPlanner::TakeOverdue() { return std::exchange(overdue_, {}); }

absl::Status StepPlanner::CheckInvariants() const {
  std::set<TaskId> resident;
  for (const auto& [id, group] : groups_.all()) {
    const auto broken = [&](const std::string& what) {
      return absl::InternalError(absl::StrCat("group ", id, " ", what));
    };
    if (group.in_flight.size() > kMaxStepsInFlight) return broken("has too many steps in flight");
    if (!group.ready && !group.residents.empty()) return broken("is down and has tasks");
    if (static_cast<int32_t>(group.residents.size()) > options_.max_resident) return broken("has too many tasks");
    std::vector<TaskId> batch;
    for (const TaskId task_id : group.residents) {
      const ScheduledTask* task = tasks_.Find(task_id);
      if (task == nullptr) return broken("has an unknown task");
      if (!resident.insert(task_id).second)
        return broken(absl::StrCat("has task ", task_id, ", which another group has, too"));
      if (task->group != id || task->phase == TaskPhase::kWaiting) return broken("has a task of another group");
      if (task->spec.isolated && group.residents.size() > 1)
        return broken("has other tasks with one that must run alone");
      if (task->spec.shape.model != group.description.model) return broken("has a task of another model");
      if (task->phase == TaskPhase::kStarting || task->phase == TaskPhase::kActive) batch.push_back(task_id);
    }
    for (const TaskId task : batch) {
      if (tasks_.Find(task)->spec.shape != tasks_.Find(batch[0])->spec.shape)
        return broken("has a batch of several shapes");
    }
    if (!batch.empty() &&
        !capacity_.Fits(group, tasks_.Find(batch[0])->spec.shape, static_cast<int32_t>(batch.size()))) {
      return broken("has a batch that does not fit");
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::server
