#include "server/serving/serving_context.h"

#include <algorithm>
#include <vector>

#include "server/api/generation_request.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/api/service_error.h"
#include "server/api/unused_parameters.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kComeAgain = absl::Seconds(1);

void AddImage(const TaskRecord& task, Job& job) {
  const ImageOrigin& origin = task.image->origin;
  job.images.push_back({.index = task.index,
                        .id = task.image->id,
                        .seed = job.request->parameters.seed + static_cast<uint64_t>(task.index),
                        .width = origin.width,
                        .height = origin.height,
                        .format = origin.format,
                        .bytes = task.image->bytes});
  job.layout = origin.layout;
  job.lossless = job.lossless && origin.lossless;
  for (const std::string& warning : origin.warnings) {
    if (std::ranges::find(job.warnings, warning) == job.warnings.end()) job.warnings.push_back(warning);
  }
}

}  // namespace

std::optional<absl::Duration> ExpectedWaitOf(RequestScheduler& scheduler, TaskId task) {
  const std::optional<absl::Duration> wait = scheduler.admission().ExpectedWait(task);
  return wait == absl::InfiniteDuration() ? std::nullopt : wait;
}

Job JobOf(const ServingContext& context, const ServiceMonitor::Lock& lock, const JobRecord& stored) {
  RequestScheduler& scheduler = context.monitor.scheduler(lock);
  LiveTasks& tasks = context.monitor.tasks(lock);
  const JobRecord record = tasks.WithLost(stored);
  Job job = {.id = record.id,
             .request = record.request,
             .state = StateOf(record),
             .created = record.created,
             .expires = context.store.ExpiryOf(record),
             .error = ErrorOf(record)};
  // Attempts that are still being stopped are not part of a job that has ended: what it reports changes no more.
  const bool ended = IsEnded(job.state);
  if (!ended) job.steps_done = tasks.StepsDone(record.id);
  const ServedModels::Model model = context.models.Find(record.request->model);
  if (model != nullptr) {
    JobRequest request = *record.request;
    job.warnings = DropUnusedParameters(request.parameters, *model->description);
    job.request = std::make_shared<const JobRequest>(std::move(request));
  }
  for (const TaskRecord& task : record.tasks) {
    if (task.started.has_value()) job.started = std::min(job.started.value_or(*task.started), *task.started);
    if (ended && task.ended.has_value()) {
      job.ended = std::max(job.ended.value_or(*task.ended), *task.ended);
    }
    if (const std::optional<int64_t> position = scheduler.admission().QueuePosition(task.id); position.has_value()) {
      if (!job.queue_position.has_value() || *position < *job.queue_position) {
        job.queue_position = position;
        job.expected_wait = ExpectedWaitOf(scheduler, task.id);
      }
    }
    const LiveTask* live = ended ? nullptr : tasks.Find(task.id);
    const int32_t steps = live != nullptr ? live->plan.steps : control::ExpectedSteps(record.request->parameters);
    job.steps_total += steps;
    if (live != nullptr && live->attempt.has_value()) {
      const parallel::Layout layout = context.groups.Find(lock, live->group).layout;
      job.layout = parallel::LayoutText(layout);
      job.lossless = parallel::IsLossless(layout, steps);
    }
    if (!task.image.has_value()) continue;
    if (live == nullptr) job.steps_done += steps;
    AddImage(task, job);
  }
  if (model != nullptr) {
    std::vector<std::string> warnings = SizeWarnings(record.request->parameters, *model->description);
    job.warnings.insert(job.warnings.begin(), warnings.begin(), warnings.end());
  }
  if (job.state != JobState::kQueued) job.queue_position.reset();
  return job;
}

absl::Status DrainingError() {
  return WithRetryAfter(
      WithErrorCode(absl::UnavailableError("the server is stopping and accepts no more jobs"), "draining"), kComeAgain);
}

absl::Status NotServedError() { return absl::FailedPreconditionError("the model is no longer served"); }

}  // namespace tessera::server
