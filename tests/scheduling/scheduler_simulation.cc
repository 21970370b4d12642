#include "tests/scheduling/scheduler_simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "control/model/model_cost.h"

namespace tessera {

control::ModelCost UnitCost() { return {.flops = {.image = 1}, .values_per_token = 0.25}; }

void SetUnitCost(server::RequestScheduler& scheduler, const std::string& model) {
  scheduler.capacity().SetModel(model, UnitCost());
}

server::SchedulerTask SmallTask(server::TaskId id, const std::string& key, int32_t steps, int32_t size) {
  return {.id = id, .key = key, .shape = {.model = "m", .height = size, .width = size}, .steps = steps};
}

SchedulerSimulation::SchedulerSimulation(const server::SchedulerOptions& options) : scheduler_(options) {
  scheduler_.capacity().SetModel("m", UnitCost());
}

void SchedulerSimulation::AddGroup(const server::GroupDescription& group, double flops_per_second) {
  scheduler_.groups().Add(group);
  scheduler_.groups().OnReady(group.id);
  workers_[group.id] = {.flops_per_second = flops_per_second, .free_at = now_};
}

void SchedulerSimulation::Submit(const server::SchedulerTask& task) {
  server::SchedulerTask spec = task;
  if (spec.enqueued == absl::InfinitePast()) spec.enqueued = now_;
  specs_[spec.id] = spec;
  TaskOutcome& outcome = outcomes_[spec.id];
  outcome = {.key = spec.key, .enqueued = spec.enqueued};
  if (!scheduler_.Enqueue(spec, now_).ok()) log_.push_back(absl::StrCat("refused ", spec.id));
}

void SchedulerSimulation::Cancel(server::TaskId task) {
  scheduler_.Cancel(task);
  cancelled_.insert(task);
}

std::vector<server::TaskId> SchedulerSimulation::KillGroup(server::GroupId group) {
  ++epochs_[group];
  workers_[group].up = false;
  return scheduler_.steps().OnGroupDied(group);
}

void SchedulerSimulation::ReviveGroup(server::GroupId group) {
  workers_[group].up = true;
  workers_[group].free_at = now_;
  scheduler_.groups().OnReady(group);
}

void SchedulerSimulation::Advance(server::GroupId id) {
  Worker& worker = workers_[id];
  if (!worker.up) return;
  while (true) {
    const server::StepPlan plan = scheduler_.steps().Next(id, now_);
    if (plan.empty()) return;
    log_.push_back(absl::StrCat("group ", id, " end ", absl::StrJoin(plan.end, ","), " start ",
                                absl::StrJoin(plan.start, ","), " step ", absl::StrJoin(plan.step, ","), " decode ",
                                absl::StrJoin(plan.decode, ","), " suspended ", absl::StrJoin(plan.suspended, ",")));
    if (worker.free_at < now_) worker.free_at = now_;
    const int epoch = epochs_[id];
    for (server::TaskId task : plan.end)
      events_.emplace(worker.free_at, Event{.group = id, .epoch = epoch, .task = task});
    for (server::TaskId task : plan.start) {
      outcomes_[task].started = now_;
      outcomes_[task].group = id;
      events_.emplace(worker.free_at, Event{.group = id, .epoch = epoch, .task = task, .started = true});
    }
    for (int32_t step = 0; !plan.step.empty() && step < plan.steps; ++step) {
      double flops = 0;
      for (server::TaskId task : plan.step) {
        ++outcomes_[task].steps;
        if (cancelled_.contains(task)) ++after_cancel_[task];
        const double own = control::StepFlops(UnitCost(), specs_[task].shape.work());
        flops += own;
        flops_[specs_[task].key] += own;
      }
      const double seconds = flops / worker.flops_per_second;
      worker.free_at += absl::Seconds(seconds);
      events_.emplace(worker.free_at, Event{.group = id, .epoch = epoch, .seconds = seconds});
    }
    for (server::TaskId task : plan.decode) {
      outcomes_[task].done = true;
      events_.emplace(worker.free_at, Event{.group = id, .epoch = epoch, .task = task});
    }
  }
}

void SchedulerSimulation::RunUntil(absl::Time end) {
  for (auto& [id, worker] : workers_) Advance(id);
  while (!events_.empty() && events_.begin()->first <= end) {
    const absl::Time at = events_.begin()->first;
    for (auto& [id, worker] : workers_) {
      // The worker is idle although tasks are waiting.
      if (worker.up && worker.free_at < at && scheduler_.tasks().waiting() > 0)
        worker.idle += at - std::max(now_, worker.free_at);
    }
    now_ = std::max(now_, at);
    const Event event = events_.begin()->second;
    events_.erase(events_.begin());
    if (event.epoch != epochs_[event.group]) continue;
    if (event.started) {
      const server::ScheduledTask* task = scheduler_.tasks().Find(event.task);
      if (task != nullptr) scheduler_.steps().OnStarted(event.group, event.task, task->spec.steps);
    } else if (event.task != 0) {
      scheduler_.steps().OnEnded(event.group, event.task);
      outcomes_[event.task].ended = now_;
    } else {
      scheduler_.steps().OnStepped(event.group, event.seconds);
    }
    for (auto& [id, worker] : workers_) Advance(id);
  }
  if (end != absl::InfiniteFuture()) now_ = std::max(now_, end);
}

absl::Duration SchedulerSimulation::idle_while_waiting(server::GroupId group) const { return workers_.at(group).idle; }

int SchedulerSimulation::steps_after_cancel(server::TaskId task) const {
  const auto steps = after_cancel_.find(task);
  return steps == after_cancel_.end() ? 0 : steps->second;
}

double SchedulerSimulation::flops_of(const std::string& key) const {
  const auto flops = flops_.find(key);
  return flops == flops_.end() ? 0 : flops->second;
}

}  // namespace tessera
