#include "server/serving/live_jobs.h"

#include <algorithm>
#include <utility>

namespace tessera {

LiveTask& LiveJobs::Add(const QueuedTask& queued, const SchedulerTask& plan) {
  jobs_[queued.job].insert(queued.id);
  LiveTask& task = tasks_[queued.id];
  task.plan = plan;
  task.image = {.job = queued.job, .index = queued.index, .trace_parent = queued.trace_parent};
  task.output = queued.request->output;
  task.partial_images = queued.request->partial_images;
  return task;
}

LiveTask* LiveJobs::Find(TaskId task) {
  const auto found = tasks_.find(task);
  return found == tasks_.end() ? nullptr : &found->second;
}

void LiveJobs::Forget(TaskId task) {
  const auto found = tasks_.find(task);
  if (found == tasks_.end()) return;
  const auto job = jobs_.find(found->second.image.job);
  job->second.erase(task);
  if (job->second.empty()) jobs_.erase(job);
  tasks_.erase(found);
}

const std::set<TaskId>& LiveJobs::TasksOf(const std::string& job) const {
  static const std::set<TaskId> none;
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? none : found->second;
}

int32_t LiveJobs::StepsDone(const std::string& job) const {
  int32_t steps = 0;
  for (const TaskId task : TasksOf(job)) steps += tasks_.at(task).steps_done;
  return steps;
}

void LiveJobs::Subscribe(const std::string& job, std::shared_ptr<Subscription> subscription) {
  watches_[job].push_back(std::move(subscription));
}

void LiveJobs::Unsubscribe(const std::string& job, const std::shared_ptr<Subscription>& subscription) {
  subscription->active = false;
  const auto found = watches_.find(job);
  if (found == watches_.end()) return;
  std::erase(found->second, subscription);
  if (found->second.empty()) watches_.erase(found);
}

std::vector<std::string> LiveJobs::Watched() const {
  std::vector<std::string> jobs;
  for (const auto& [job, subscriptions] : watches_) jobs.push_back(job);
  return jobs;
}

void LiveJobs::Tell(const std::string& job, const JobEvent& event) {
  const auto found = watches_.find(job);
  if (found == watches_.end()) return;
  const auto subscriptions = found->second;  // a listener may end its own watch
  for (const std::shared_ptr<Subscription>& subscription : subscriptions) {
    if (const auto* image = std::get_if<ImageEvent>(&event)) {
      if (!subscription->images.insert(image->image.index).second) continue;
    }
    if (subscription->active) subscription->listener(event);
  }
}

void LiveJobs::LetGo(const absl::Status& reason) {
  for (const std::string& job : Watched()) Tell(job, LetGoEvent{reason});
  watches_.clear();
}

void LiveJobs::LetGo(const std::string& job, const absl::Status& reason) {
  Tell(job, LetGoEvent{reason});
  watches_.erase(job);
}

std::vector<std::string> LiveJobs::Stuck() const {
  std::vector<std::string> jobs = Watched();
  std::erase_if(jobs, [this](const std::string& job) {
    return std::ranges::none_of(TasksOf(job), [this](TaskId task) { return tasks_.at(task).stuck; });
  });
  return jobs;
}

void LiveJobs::TellEnd(const std::string& job, const Job& ended) {
  for (const FinishedImage& image : ended.images) Tell(job, ImageEvent{image});
  Tell(job, EndedEvent{ended});
  watches_.erase(job);
}

}  // namespace tessera
