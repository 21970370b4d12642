#include "server/serving/live_tasks.h"

#include <algorithm>

#include "base/fields/content_fields.h"
#include "server/api/job_request.h"

namespace tessera::server {
namespace {

std::vector<std::string> ContentsOf(const control::JobParameters& parameters) {
  std::vector<std::string> contents;
  base::ForEachContent(parameters, [&contents](const std::string& digest) { contents.push_back(digest); });
  return contents;
}

}  // namespace

LiveTask& LiveTasks::Add(const QueuedTask& queued, const SchedulerTask& plan) {
  jobs_[queued.job].insert(queued.id);
  LiveTask& task = tasks_[queued.id];
  task.plan = plan;
  task.image = {.job = queued.job, .index = queued.index, .trace_parent = queued.trace_parent};
  task.output = queued.request->output;
  task.partial_images = queued.request->partial_images;
  task.contents = ContentsOf(queued.request->parameters);
  return task;
}

LiveTask* LiveTasks::Find(TaskId task) {
  const auto found = tasks_.find(task);
  return found == tasks_.end() ? nullptr : &found->second;
}

std::set<std::string> LiveTasks::NeededContents() const {
  std::set<std::string> digests;
  for (const auto& [id, task] : tasks_) digests.insert(task.contents.begin(), task.contents.end());
  for (const auto& [id, contents] : held_) digests.insert(contents.begin(), contents.end());
  return digests;
}

void LiveTasks::HoldContents(TaskId task, const control::JobParameters& parameters) {
  held_[task] = ContentsOf(parameters);
}

void LiveTasks::Forget(TaskId task) {
  const auto found = tasks_.find(task);
  if (found == tasks_.end()) return;
  const auto job = jobs_.find(found->second.image.job);
  job->second.erase(task);
  if (job->second.empty()) jobs_.erase(job);
  tasks_.erase(found);
}

std::vector<TaskId> LiveTasks::All() const {
  std::vector<TaskId> tasks;
  for (const auto& [id, task] : tasks_) tasks.push_back(id);
  return tasks;
}

const std::set<TaskId>& LiveTasks::TasksOf(const std::string& job) const {
  static const std::set<TaskId> none;
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? none : found->second;
}

int32_t LiveTasks::StepsDone(const std::string& job) const {
  int32_t steps = 0;
  for (const TaskId task : TasksOf(job)) steps += tasks_.at(task).steps_done;
  return steps;
}

bool LiveTasks::IsStuck(const std::string& job) const {
  return std::ranges::any_of(TasksOf(job), [this](TaskId task) { return tasks_.at(task).stuck; });
}

void LiveTasks::Lose(TaskId task, const absl::Status& error, absl::Time ended) {
  lost_[task] = {.error = error, .ended = ended};
}

JobRecord LiveTasks::WithLost(const JobRecord& record) const {
  JobRecord with_lost = record;
  for (TaskRecord& task : with_lost.tasks) {
    const auto lost = lost_.find(task.id);
    if (lost == lost_.end() || IsEnded(task.state)) continue;
    task.state = TaskState::kFailed;
    task.error = lost->second.error;
    task.ended = lost->second.ended;
  }
  return with_lost;
}

}  // namespace tessera::server
