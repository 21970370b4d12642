#include "server/serving/job_outcomes.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/threads/batch_scheduling.h"
#include "control/pictures/picture_frames.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/metadata/fitted_parameters.h"
#include "server/metadata/image_metadata.h"
#include "server/metadata/parameters_text.h"
#include "server/serving/storage_error.h"
#include "server/serving/watch_hub.h"
#include "server/workers/last_output.h"

namespace tessera::server {
namespace {

constexpr int kPoolThreads = 4;
constexpr int kPreviewQuality = 85;
constexpr absl::Duration kDiskPause = absl::Seconds(1);

// Returns whether the task was cancelled, another server has it, or the next process will report it.
bool IsOthersBusiness(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsNotFound(status) || absl::IsCancelled(status);
}

// The part of the group's time that the task had, on every rank.
KeyUsage UsageOf(const LiveTask& task, const ServingGroup& group, int64_t images) {
  return {.key = task.plan.key,
          .model = task.plan.shape.model,
          .images = images,
          .steps = task.steps_done,
          .device_seconds = task.group_seconds * group.layout.ranks()};
}

}  // namespace

// The pool encodes pictures while others are computed.
JobOutcomes::JobOutcomes(const ServingContext& context)
    : context_(context), pool_(kPoolThreads, base::UseBatchScheduling) {}

void JobOutcomes::PostFinish(const ServiceMonitor::Lock& lock, FinishedTask finished) {
  const TaskId task = finished.attempt.task;
  AddUnstored(lock, task, /*released=*/false);
  pool_.Post([this, task, finished = std::make_shared<const FinishedTask>(std::move(finished))] {
    Finish(*finished);
    RemoveUnstored(task);
  });
}

void JobOutcomes::PostFailure(const ServiceMonitor::Lock& lock, const TaskAttempt& attempt, const absl::Status& error) {
  AddUnstored(lock, attempt.task, /*released=*/false);
  pool_.Post([this, attempt, error] {
    FailRunning(attempt, error);
    RemoveUnstored(attempt.task);
  });
}

void JobOutcomes::PostFailWaiting(TaskId task, const absl::Status& error) {
  pool_.Post([this, task, error] { FailWaiting(task, error); });
}

void JobOutcomes::PostPreview(const LiveTask& task, int32_t number, const control::Frames& image) {
  if (!context_.hub.IsWatched(task.image.job)) return;
  pool_.Post([this, job = task.image.job, index = task.image.index, number, output = task.output, image] {
    OutputOptions smaller = output;
    if (smaller.format != ImageFormat::kPng && !smaller.quality.has_value()) smaller.quality = kPreviewQuality;
    absl::StatusOr<std::string> bytes = EncodeOutput(image, smaller);
    if (!bytes.ok()) return;
    context_.hub.Publish(job, PreviewEvent{.image = index,
                                           .preview = number,
                                           .width = image.width,
                                           .height = image.height,
                                           .format = output.format,
                                           .bytes = std::make_shared<const std::string>(*std::move(bytes))});
  });
}

void JobOutcomes::PostOverdue(const ServiceMonitor::Lock& lock) {
  for (const TaskId id : context_.monitor.scheduler(lock).steps().TakeOverdue()) {
    LiveTask* task = context_.monitor.tasks(lock).Find(id);
    if (task == nullptr) continue;
    task->overdue = true;
    if (task->attempt.has_value()) PostOverdue(*task->attempt);
  }
}

void JobOutcomes::PostOverdue(const TaskAttempt& attempt) {
  pool_.Post([this, attempt] {
    FailRunning(attempt, absl::DeadlineExceededError("the deadline of the job passed while it ran"));
  });
}

KeyUsage JobOutcomes::UncountedOf(const ServiceMonitor::Lock& lock, const LiveTask& task) const {
  if (task.group == 0 || task.group_seconds <= 0) return {};
  return UsageOf(task, context_.groups.Find(lock, task.group), /*images=*/0);
}

// Best effort: a cancelled image may be counted late or, if the process is killed or the disk fails, never.
void JobOutcomes::PostUsage(const KeyUsage& usage) {
  context_.metrics.CountUsage(usage);
  pool_.Post([this, usage] { context_.store.AddUsage(usage).IgnoreError(); });
}

void JobOutcomes::Finish(const FinishedTask& finished) {
  const absl::Time begun = context_.trace.Now();
  const ServingGroup& group = finished.group;
  const control::JobParameters& parameters = *finished.task.parameters;
  const bool names_pictures = !parameters.images.empty() && context_.picture_key != nullptr;
  const ImageParameters metadata =
      MetadataOf(parameters, {.sampler = finished.started.sampler,
                              .model_name = group.model->id,
                              .model = *group.model->description,
                              .placement = group.load,
                              .layout = group.layout,
                              .weights = group.contents,
                              .products_drift = group.products_drift,
                              .picture_key = names_pictures ? context_.picture_key(finished.task.plan.key) : ""});
  const absl::StatusOr<FittedParameters> fitted = FitParameters(metadata, finished.task.output.format);
  if (!fitted.ok()) return FailRunning(finished.attempt, fitted.status());
  absl::StatusOr<std::string> file = EncodeOutput(finished.image, finished.task.output, fitted->text);
  if (!file.ok()) return FailRunning(finished.attempt, file.status());
  std::vector<std::string> warnings = finished.started.warnings;
  warnings.insert(warnings.end(), fitted->warnings.begin(), fitted->warnings.end());
  const ImageOrigin origin = {.width = finished.image.width,
                              .height = finished.image.height,
                              .format = finished.task.output.format,
                              .layout = parallel::LayoutText(group.layout),
                              .lossless = parallel::IsLossless(group.layout, finished.started.steps),
                              .warnings = std::move(warnings),
                              .usage = UsageOf(finished.task, group, /*images=*/1)};
  const absl::Time encoded = context_.trace.Now();
  const absl::Status kept =
      Persist({finished.attempt.task}, [&] { return context_.store.Finish(finished.attempt, *file, origin); });
  context_.trace.OnImageEncoded(finished.task.image, begun, encoded);
  if (IsOthersBusiness(kept)) return ForgetIfCancelled(finished.attempt.task);
  if (!kept.ok()) return FailRunning(finished.attempt, kept);
  context_.metrics.CountUsage(origin.usage);
  context_.metrics.Observe(ImageStage::kImage, context_.store.Now() - finished.task.plan.enqueued);
  ReportEnded(finished.attempt.task, "done");
}

void JobOutcomes::FailRunning(const TaskAttempt& attempt, const absl::Status& error) {
  KeyUsage usage;
  {
    const ServiceMonitor::Lock lock = context_.monitor.Acquire();
    if (const LiveTask* task = context_.monitor.tasks(lock).Find(attempt.task)) usage = UncountedOf(lock, *task);
  }
  const absl::Status kept = Persist({attempt.task}, [&] { return context_.store.Fail(attempt, error, usage); });
  if (IsOthersBusiness(kept)) return ForgetIfCancelled(attempt.task);
  if (!kept.ok()) return Lose(attempt.task, error);
  context_.metrics.CountUsage(usage);
  {
    const ServiceMonitor::Lock lock = context_.monitor.Acquire();
    if (LiveTask* task = context_.monitor.tasks(lock).Find(attempt.task)) task->group_seconds = 0;
  }
  ReportEnded(attempt.task, "failed", error);
}

void JobOutcomes::FailWaiting(TaskId task, const absl::Status& error) {
  const absl::Status kept = Persist({task}, [&] { return context_.store.FailQueued(task, error); });
  if (IsOthersBusiness(kept)) return;
  if (!kept.ok()) return Lose(task, error);
  ReportEnded(task, "failed", error);
}

absl::Status JobOutcomes::Persist(const std::vector<TaskId>& tasks, const std::function<absl::Status()>& write) {
  ++writes_under_way_;
  const absl::Cleanup end = [this] { --writes_under_way_; };
  while (true) {
    absl::Status status = write();
    ServiceMonitor::Lock lock = context_.monitor.Acquire();
    const bool disk = IsStorageTrouble(status);
    for (const TaskId id : tasks) {
      if (LiveTask* task = context_.monitor.tasks(lock).Find(id); task != nullptr) task->stuck = disk;
    }
    if (!disk) return status;
    if (context_.monitor.WaitForStop(lock, kDiskPause)) return absl::CancelledError("the process is stopping");
  }
}

void JobOutcomes::Lose(TaskId id, const absl::Status& error) {
  {
    const ServiceMonitor::Lock lock = context_.monitor.Acquire();
    LiveTask* task = context_.monitor.tasks(lock).Find(id);
    if (task == nullptr) return;
    task->again = false;
    context_.monitor.tasks(lock).Lose(id, error, context_.store.Calendar());
  }
  ReportEnded(id, "failed",
              absl::Status(error.code(), absl::StrCat(error.message(), "; the job store cannot record the failure")));
}

void JobOutcomes::ForgetIfCancelled(TaskId id) {
  const ServiceMonitor::Lock lock = context_.monitor.Acquire();
  const LiveTask* task = context_.monitor.tasks(lock).Find(id);
  if (task != nullptr && task->cancelled) Forget(lock, id, "cancelled");
}

void JobOutcomes::Forget(const ServiceMonitor::Lock& lock, TaskId id, const std::string& outcome) {
  LiveTasks& tasks = context_.monitor.tasks(lock);
  if (const LiveTask* task = tasks.Find(id); task != nullptr) {
    if (context_.trace.exports_spans() && !task->exported_elsewhere) {
      context_.trace.OnEnded(task->image, FactsOf(lock, *task), outcome);
    }
    context_.trace.OnForgotten(task->image, outcome);
    if (outcome != "done") {  // Finish has counted a finished image, and Fail one that failed
      if (const KeyUsage usage = UncountedOf(lock, *task); !usage.key.empty()) PostUsage(usage);
    }
  }
  tasks.Forget(id);
}

ImageFacts JobOutcomes::FactsOf(const ServiceMonitor::Lock& lock, const LiveTask& task) const {
  ImageFacts facts = {.model = task.plan.shape.model,
                      .width = task.plan.shape.width,
                      .height = task.plan.shape.height,
                      .steps = task.plan.steps,
                      .key = task.plan.key,
                      .created = task.plan.enqueued};
  if (task.group == 0) return facts;
  const ServingGroup group = context_.groups.Find(lock, task.group);
  facts.group = group.name;
  facts.layout = parallel::LayoutText(group.layout);
  return facts;
}

// A caller who left a job sees its failure only on request; this line informs the operator.
base::LogLine JobOutcomes::FailureLine(const ServiceMonitor::Lock& lock, const LiveTask& task,
                                       const std::string& outcome, const absl::Status& error) const {
  const bool defect = outcome == "quarantined" || absl::IsInternal(error) || absl::IsUnknown(error) ||
                      absl::IsDataLoss(error) || absl::IsUnavailable(error);
  const std::string reason(error.message());
  base::LogLine line(
      defect ? base::LogLevel::kError : base::LogLevel::kWarning,
      absl::StrCat("image ", task.image.index, " of job ", task.image.job, " is ", outcome, ": ", reason),
      {{"job", task.image.job},
       {"image_index", task.image.index},
       {"outcome", outcome},
       {"error", absl::StatusCodeToString(error.code())},
       {"reason", reason},
       {"tenant", task.plan.key},
       {"model", task.plan.shape.model},
       {"traceparent", task.image.trace_parent}});
  if (task.group != 0) line.fields["group"] = context_.groups.Find(lock, task.group).name;
  line.event = "image_failed";
  return line;
}

void JobOutcomes::ReportEnded(TaskId id, const std::string& outcome, const absl::Status& error) {
  std::string job, tenant;
  std::optional<base::LogLine> failure;
  {
    const ServiceMonitor::Lock lock = context_.monitor.Acquire();
    const LiveTask* task = context_.monitor.tasks(lock).Find(id);
    if (task == nullptr) return;
    if (!task->cancelled) {  // a cancelled task is already counted
      if (outcome == "failed" || outcome == "quarantined") failure = FailureLine(lock, *task, outcome, error);
      context_.metrics.CountImage(outcome);
    }
    job = task->image.job;
    tenant = task->plan.key;
    Forget(lock, id, outcome);
  }
  if (failure.has_value()) context_.log(*failure);
  if (!context_.hub.IsWatched(job)) return;
  const absl::StatusOr<JobRecord> record = context_.store.Get(tenant, job);
  if (!record.ok())
    return context_.hub.Publish(job,
                                ReleasedEvent{StorageErrorForCaller(record.status(), context_.store.trouble().state)});
  const ServiceMonitor::Lock lock = context_.monitor.Acquire();
  const Job now = JobOf(context_, lock, *record);
  if (IsEnded(now.state)) return context_.hub.PublishEnd(now);
  for (const FinishedImage& image : now.images) context_.hub.Publish(job, ImageEvent{image});
}

void JobOutcomes::AddUnstored(const ServiceMonitor::Lock& lock, TaskId id, bool released) {
  const LiveTask* task = context_.monitor.tasks(lock).Find(id);
  unstored_.emplace(id, Unstored{.model = task == nullptr ? "" : task->plan.shape.model, .released = released});
}

void JobOutcomes::Release(const ServiceMonitor::Lock&, TaskId task) {
  if (const auto unstored = unstored_.find(task); unstored != unstored_.end()) unstored->second.released = true;
}

void JobOutcomes::RemoveUnstored(TaskId task) {
  const ServiceMonitor::Lock lock = context_.monitor.Acquire();
  unstored_.erase(task);
  context_.monitor.Notify();
}

int64_t JobOutcomes::ReleasedOf(const ServiceMonitor::Lock&, const std::string& model) const {
  return std::ranges::count_if(unstored_,
                               [&](const auto& task) { return task.second.released && task.second.model == model; });
}

}  // namespace tessera::server
