#include "server/serving/job_lifecycle.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fields/content_fields.h"
#include "base/fields/field_error.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "control/model/model_description.h"
#include "server/api/job.h"
#include "server/jobs/new_job.h"
#include "server/jobs/store_rules.h"
#include "server/pictures/uploaded_pictures.h"
#include "server/scheduling/shape_class.h"
#include "server/serving/storage_error.h"
#include "server/serving/watch_hub.h"
#include "server/workers/last_output.h"

namespace tessera::server {
namespace {

using Lock = ServiceMonitor::Lock;

constexpr size_t kMaxUnstored = 64;  // decoded tasks not on the disk yet; at this number groups wait
// Pause before a task is claimed again from a store that cannot write.
constexpr absl::Duration kStorePause = absl::Seconds(1);

std::vector<TaskId> IdsOf(const std::vector<TaskAttempt>& attempts) {
  std::vector<TaskId> tasks;
  for (const TaskAttempt& attempt : attempts) tasks.push_back(attempt.task);
  return tasks;
}

}  // namespace

absl::Status JobLifecycle::Recover() {
  std::vector<std::pair<TaskId, absl::Status>> refused;  // their model is not served or has too little memory
  const absl::StatusOr<Recovery> recovery = context_.store.Recover([&](const QueuedTask& queued) {
    const Lock lock = context_.monitor.Acquire();
    const JobRequest& request = *queued.request;
    const ServedModels::Model model = context_.models.Find(request.model);
    if (model != nullptr && !model->unreadable.ok()) {
      auto kept = std::make_shared<const JobRequest>(request);
      kept_tasks_.emplace(model->id, KeptTask{queued, kept})->second.task.request = kept.get();
      return;
    }
    if (model == nullptr && context_.store.is_shared()) return;  // other servers may serve it
    const absl::Status fits = model == nullptr ? NotServedError()
                                               : context_.monitor.scheduler(lock).capacity().CheckFits(
                                                     ShapeOf(model->id, model->description->cost, request.parameters));
    if (fits.ok()) return Enqueue(lock, queued, /*ticket=*/0);
    refused.emplace_back(queued.id, fits);
    context_.log(
        {base::LogLevel::kWarning,
         absl::StrCat("image ", queued.index, " of job ", queued.job, " fails: ", std::string(fits.message())),
         {{"job", queued.job}, {"image_index", queued.index}, {"tenant", queued.tenant}, {"model", request.model}}});
  });
  RETURN_IF_ERROR(recovery.status());
  for (const auto& [task, reason] : refused) context_.store.FailQueued(task, reason).IgnoreError();
  if (const std::string future = FutureText(recovery->newest, recovery->opened); !future.empty()) {
    context_.log({base::LogLevel::kWarning,
                  absl::StrCat(future,
                               "; set it if it is wrong; new jobs get the time of the clock, and nothing is "
                               "removed before its retention is over, counted in the time that servers have run")});
  }
  context_.log(absl::StrCat("recovered ", recovery->queued, " queued images, of which ", recovery->given_back,
                            " were running; ", recovery->damaged, " were damaged"));
  return absl::OkStatus();
}

void JobLifecycle::Enqueue(const Lock& lock, const QueuedTask& queued, uint64_t ticket) {
  RequestScheduler& scheduler = context_.monitor.scheduler(lock);
  // The notice of this task may have arrived first.
  if (context_.monitor.tasks(lock).Find(queued.id) != nullptr) {
    if (ticket != 0) scheduler.admission().Redeem(ticket, queued.tenant).IgnoreError();
    return;
  }
  const LiveTask* task = Add(lock, queued);
  if (task == nullptr) {  // the model was removed after the admission
    scheduler.admission().Release(ticket);
    if (!context_.store.is_shared()) outcomes_.PostFailWaiting(queued.id, NotServedError());
    return;
  }
  scheduler.Enqueue(task->plan, context_.store.Now(), ticket).IgnoreError();  // ids are never reused
}

LiveTask* JobLifecycle::Add(const Lock& lock, const QueuedTask& queued) {
  const JobRequest& request = *queued.request;
  const ServedModels::Model model = context_.models.Find(request.model);
  if (model == nullptr || !model->unreadable.ok()) return nullptr;
  // The scheduler's time never jumps, but the times in records may come from a clock that was wrong.
  const absl::Time now = context_.store.Now(), calendar = context_.store.Calendar();
  std::optional<absl::Time> deadline;
  if (queued.deadline && request.timeout) deadline = now + std::min(*queued.deadline - calendar, *request.timeout);
  const SchedulerTask plan = {.id = queued.id,
                              .key = queued.tenant,
                              .shape = ShapeOf(request.model, model->description->cost, request.parameters),
                              .steps = control::ExpectedSteps(request.parameters),
                              .priority = request.priority,
                              .enqueued = now - std::max(calendar - queued.created, absl::ZeroDuration()),
                              .deadline = deadline,
                              .isolated = queued.blame.isolated};
  LiveTask& task = context_.monitor.tasks(lock).Add(queued, plan);
  context_.trace.OnQueued(task.image, plan.enqueued);
  return &task;
}

void JobLifecycle::SetElsewhere(const Lock& lock, TaskId id, bool elsewhere) {
  LiveTask* task = context_.monitor.tasks(lock).Find(id);
  if (task == nullptr || std::exchange(task->elsewhere, elsewhere) == elsewhere) return;
  AdmissionControl& admission = context_.monitor.scheduler(lock).admission();
  if (elsewhere) {
    admission.AddElsewhere(task->plan);
  } else {
    admission.RemoveElsewhere(id);
  }
}

void JobLifecycle::EnqueueAgain(const Lock& lock, TaskId id) {
  LiveTask* task = context_.monitor.tasks(lock).Find(id);
  if (task == nullptr || !std::exchange(task->again, false)) return;
  task->overdue = false;  // the scheduler expires a waiting task itself
  context_.monitor.scheduler(lock).Enqueue(task->plan, context_.store.Now()).IgnoreError();
  context_.trace.OnQueuedAgain(task->image);
}

void JobLifecycle::EnqueueKept(const Lock& lock, const std::string& model) {
  const auto [begin, end] = kept_tasks_.equal_range(model);
  for (auto kept = begin; kept != end; ++kept) Enqueue(lock, kept->second.task, /*ticket=*/0);
  kept_tasks_.erase(begin, end);
}

std::set<std::string> JobLifecycle::NeededContents(const Lock& lock) const {
  std::set<std::string> digests = context_.monitor.tasks(lock).NeededContents();
  for (const auto& [model, kept] : kept_tasks_) {
    base::ForEachContent(kept.request->parameters, [&digests](const std::string& digest) { digests.insert(digest); });
  }
  return digests;
}

std::vector<TaskId> JobLifecycle::TakeUnserved(const Lock& lock, const std::vector<std::string>& models) {
  std::vector<TaskId> taken;
  for (const std::string& model : models) {
    if (context_.models.Find(model) != nullptr) continue;
    const std::vector<TaskId> waiting = context_.monitor.scheduler(lock).TakeModel(model);
    if (context_.store.is_shared()) {
      for (const TaskId task : waiting) outcomes_.Forget(lock, task, "not served");
      continue;
    }
    taken.insert(taken.end(), waiting.begin(), waiting.end());
  }
  std::erase_if(kept_tasks_, [&](const auto& kept) {
    if (context_.models.Find(kept.first) != nullptr) return false;
    if (context_.store.is_shared()) return true;
    taken.push_back(kept.second.task.id);
    return true;
  });
  return taken;
}

absl::StatusOr<Job> JobLifecycle::Cancel(const std::string& tenant, const std::string& job) {
  const absl::StatusOr<JobRecord> record = context_.store.Cancel(tenant, job);
  if (!record.ok()) return StorageErrorForCaller(record.status(), context_.store.trouble().state);
  const Lock lock = context_.monitor.Acquire();
  for (const TaskRecord& task : record->tasks) {
    LiveTask* live = context_.monitor.tasks(lock).Find(task.id);
    if (live == nullptr) continue;
    const bool cancelled = task.state == TaskState::kCancelled;
    if (cancelled && !std::exchange(live->cancelled, true)) context_.metrics.CountImage("cancelled");
    const bool was_elsewhere = live->elsewhere && cancelled;
    if (was_elsewhere) {
      live->exported_elsewhere = true;
      SetElsewhere(lock, task.id, false);
    }
    if (context_.monitor.scheduler(lock).Cancel(task.id) || was_elsewhere) {
      outcomes_.Forget(lock, task.id, "cancelled");
    }
  }
  context_.monitor.NotifyWork(lock);
  Job cancelled = JobOf(context_, lock, *record);
  if (IsEnded(cancelled.state)) context_.hub.PublishEnd(cancelled);
  return cancelled;
}

void JobLifecycle::OnReady(GroupId group, const std::optional<control::MemoryBudget>& memory_budget) {
  const Lock lock = context_.monitor.Acquire();
  context_.groups.OnReady(lock, group, memory_budget);
  context_.monitor.NotifyWork(lock);
}

// Tasks that only this group could execute stay in the queue, because the group may start later.
void JobLifecycle::OnRefused(GroupId group) {
  const Lock lock = context_.monitor.Acquire();
  context_.groups.OnRefused(lock, group);
}

void JobLifecycle::OnDied(GroupId group, const absl::Status& reason, bool blameless) {
  std::vector<TaskId> tasks, added;
  bool ending = false;
  {
    const Lock lock = context_.monitor.Acquire();
    tasks = context_.monitor.scheduler(lock).steps().OnGroupDied(group);
    ending = context_.monitor.stopping(lock);
    for (const TaskId id : tasks) {
      if (!outcomes_.IsUnstored(lock, id)) added.push_back(id);
      outcomes_.AddUnstored(lock, id, /*released=*/true);
      outcomes_.Release(lock, id);
    }
  }
  GiveUp(tasks, reason, /*blame=*/!blameless && !ending);
  for (const TaskId id : added) outcomes_.RemoveUnstored(id);
  const Lock lock = context_.monitor.Acquire();
  for (const TaskId id : tasks) EnqueueAgain(lock, id);
  context_.monitor.NotifyWork(lock);
}

std::vector<TaskAttempt> JobLifecycle::TakeAttempts(const std::vector<TaskId>& tasks) {
  std::vector<TaskAttempt> attempts;
  const Lock lock = context_.monitor.Acquire();
  for (const TaskId id : tasks) {
    LiveTask* task = context_.monitor.tasks(lock).Find(id);
    if (task == nullptr || (task->overdue && task->attempt.has_value())) continue;
    // The picture is being written to the disk, which ends the task.
    if (task->decoded && !base::Planted("finished_task_is_queued_again")) continue;
    if (task->cancelled) {
      outcomes_.Forget(lock, id, "cancelled");
      continue;
    }
    task->again = true;
    task->steps_done = task->previews = 0;
    task->group_seconds = 0;
    if (task->attempt.has_value()) attempts.push_back(*std::exchange(task->attempt, std::nullopt));
  }
  return attempts;
}

void JobLifecycle::GiveUp(const std::vector<TaskId>& tasks, const absl::Status& reason, bool blame) {
  const std::vector<TaskAttempt> attempts = TakeAttempts(tasks);
  if (attempts.empty()) return;
  std::vector<Verdict> verdicts;
  const absl::Status kept = outcomes_.Persist(IdsOf(attempts), [&] {
    if (!blame) return context_.store.GiveBack(attempts);
    absl::StatusOr<std::vector<Verdict>> judged =
        context_.store.GroupDied(attempts, WithoutLastOutput(reason.message()));
    RETURN_IF_ERROR(judged.status());
    verdicts = *std::move(judged);
    return absl::OkStatus();
  });
  if (kept.ok()) {
    const Lock lock = context_.monitor.Acquire();
    for (const TaskAttempt& attempt : attempts) {
      LiveTask* task = context_.monitor.tasks(lock).Find(attempt.task);
      if (task != nullptr) task->moves = std::max(task->moves, MovesOf(TaskState::kQueued, attempt.attempt));
    }
  } else if (!absl::IsCancelled(kept)) {
    for (const TaskId id : IdsOf(attempts)) outcomes_.Lose(id, kept);
  }
  for (const Verdict& verdict : verdicts) {
    const TaskId id = verdict.attempt.task;
    if (!IsEnded(verdict.state)) {  // if another server has it by now, the next claim fails
      const Lock lock = context_.monitor.Acquire();
      if (LiveTask* task = context_.monitor.tasks(lock).Find(id); task != nullptr)
        task->plan.isolated = verdict.blame.isolated;
    } else {
      outcomes_.ReportEnded(id, verdict.state == TaskState::kQuarantined ? "quarantined" : "cancelled", reason);
    }
  }
}

StepPlan JobLifecycle::Next(GroupId group) {
  const Lock lock = context_.monitor.Acquire();
  planned_[group] = context_.monitor.generation(lock);
  StepPlan plan = context_.monitor.scheduler(lock).steps().Next(group, context_.store.Now());
  outcomes_.PostOverdue(lock);
  return plan;
}

void JobLifecycle::WaitForWork(GroupId group, absl::Duration timeout) {
  Lock lock = context_.monitor.Acquire();
  context_.monitor.WaitFor(lock, timeout, [&] {
    return context_.monitor.stopping(lock) || context_.monitor.generation(lock) != planned_[group];
  });
}

absl::Status JobLifecycle::OnNotClaimed(TaskId id, const absl::Status& reason) {
  if (absl::IsAborted(reason)) {
    const Lock lock = context_.monitor.Acquire();
    const LiveTask* task = context_.monitor.tasks(lock).Find(id);
    if (task != nullptr && !task->cancelled && !task->again) SetElsewhere(lock, id, true);
    return reason;
  }
  if (IsStorageTrouble(reason)) {
    Lock lock = context_.monitor.Acquire();
    context_.monitor.WaitForStop(lock, kStorePause);  // prevents a busy loop of claims
    if (LiveTask* task = context_.monitor.tasks(lock).Find(id); task != nullptr) task->again = task->stuck = true;
    return reason;
  }
  const bool cancelled = absl::IsFailedPrecondition(reason) || absl::IsNotFound(reason);
  // The store itself fails a damaged row unless it cannot write.
  if (!cancelled && (!absl::IsDataLoss(reason) || !context_.store.can_write())) {
    outcomes_.Lose(id, reason);
  } else {
    outcomes_.ReportEnded(id, cancelled ? "cancelled" : "failed", reason);
  }
  return reason;
}

absl::Status JobLifecycle::Locate(TaskId id, control::JobParameters& parameters) {
  RETURN_IF_ERROR(context_.adapters.Locate(parameters.adapters));
  if (parameters.images.empty()) return absl::OkStatus();
  std::string tenant;
  {
    const Lock lock = context_.monitor.Acquire();
    if (const LiveTask* task = context_.monitor.tasks(lock).Find(id); task != nullptr) tenant = task->plan.key;
  }
  const ContentOwner owner = ContentOwner::Key(tenant);
  RETURN_IF_ERROR(context_.pictures.Locate(owner, parameters.images));
  return context_.pictures.Locate(owner, parameters.mask);
}

absl::StatusOr<RunnableTask> JobLifecycle::Claim(GroupId group, TaskId id) {
  if (base::Planted("claim_reported_before_it_is_made")) {
    const Lock lock = context_.monitor.Acquire();
    context_.hub.Publish(context_.monitor.tasks(lock).Find(id)->image.job, StartedEvent{});
  }
  const absl::StatusOr<ClaimedTask> claimed = context_.store.Claim(id);
  if (!claimed.ok()) return OnNotClaimed(id, claimed.status());
  control::JobParameters parameters = claimed->parameters;
  const absl::Status located = Locate(id, parameters);
  const Lock lock = context_.monitor.Acquire();
  LiveTask* task = context_.monitor.tasks(lock).Find(id);
  if (task == nullptr) return absl::CancelledError("it was cancelled");
  task->attempt = claimed->claim;
  task->moves = MovesOf(TaskState::kRunning, claimed->claim.attempt);
  SetElsewhere(lock, id, false);
  task->parameters = std::make_shared<control::JobParameters>(parameters);
  task->group = group;
  task->stuck = false;
  if (task->overdue) {
    outcomes_.PostOverdue(*task->attempt);
    return absl::DeadlineExceededError("its deadline passed while it was claimed");
  }
  if (!located.ok()) {
    outcomes_.PostFailure(lock, *task->attempt, located);
    return located;
  }
  context_.metrics.Observe(ImageStage::kQueue, context_.store.Now() - task->plan.enqueued);
  context_.trace.OnClaimed(task->image);
  return RunnableTask{.image = task->image, .parameters = task->parameters};
}

std::vector<int32_t> JobLifecycle::OnStarted(GroupId group, TaskId id, const control::JobStarted& started) {
  context_.metrics.Observe(ImageStage::kEncode, absl::Seconds(started.seconds));
  if (started.cached) context_.metrics.CountCachedPrompt();
  const Lock lock = context_.monitor.Acquire();
  context_.monitor.scheduler(lock).steps().OnStarted(group, id, started.steps);
  LiveTask* task = context_.monitor.tasks(lock).Find(id);
  if (task == nullptr) return {};
  task->plan.steps = started.steps;
  task->group_seconds += started.seconds;
  context_.hub.Publish(task->image.job, StartedEvent{});
  return PreviewSteps(started.steps, task->partial_images);
}

void JobLifecycle::OnStepped(GroupId group, const std::vector<TaskId>& tasks, double seconds) {
  if (!tasks.empty()) context_.metrics.Observe(ImageStage::kStep, absl::Seconds(seconds));
  const Lock lock = context_.monitor.Acquire();
  context_.monitor.scheduler(lock).steps().OnStepped(group, seconds);
  for (const TaskId id : tasks) {
    LiveTask* task = context_.monitor.tasks(lock).Find(id);
    if (task == nullptr) continue;
    ++task->steps_done;
    task->group_seconds += seconds / static_cast<double>(tasks.size());
    context_.hub.Publish(task->image.job,
                         StepEvent{.image = task->image.index, .step = task->steps_done, .steps = task->plan.steps});
  }
}

void JobLifecycle::OnPreview(GroupId, TaskId id, const control::Frames& image) {
  const Lock lock = context_.monitor.Acquire();
  LiveTask* task = context_.monitor.tasks(lock).Find(id);
  if (task == nullptr) return;
  const int32_t number = task->previews++;
  outcomes_.PostPreview(*task, number, image);
}

void JobLifecycle::OnDecoded(GroupId group, TaskId id, control::Frames image, const control::JobStarted& started,
                             double seconds) {
  context_.metrics.Observe(ImageStage::kDecode, absl::Seconds(seconds));
  Lock lock = context_.monitor.Acquire();
  context_.monitor.Wait(lock,
                        [&] { return context_.monitor.stopping(lock) || outcomes_.unstored(lock) < kMaxUnstored; });
  LiveTask* task = context_.monitor.tasks(lock).Find(id);
  if (task == nullptr || !task->attempt.has_value() || task->cancelled) return;
  task->decoded = true;
  task->group_seconds += seconds;
  outcomes_.PostFinish(lock, {.attempt = *task->attempt,
                              .task = *task,
                              .image = std::move(image),
                              .started = started,
                              .group = context_.groups.Find(lock, group)});
}

void JobLifecycle::OnFailed(GroupId, TaskId id, const absl::Status& error) {
  const Lock lock = context_.monitor.Acquire();
  const LiveTask* task = context_.monitor.tasks(lock).Find(id);
  if (task == nullptr || !task->attempt.has_value()) return;
  const absl::Status reason(error.code(), WithoutLastOutput(error.message()));
  outcomes_.PostFailure(lock, *task->attempt, base::WithField(reason, base::FieldOf(error)));
}

void JobLifecycle::OnBatchDiffers(GroupId group, const std::vector<TaskId>& tasks) {
  const Lock lock = context_.monitor.Acquire();
  for (const TaskId id : tasks) {
    const LiveTask* task = context_.monitor.tasks(lock).Find(id);
    if (task == nullptr) continue;  // cancelled meanwhile; all tasks of the batch are of one class
    context_.monitor.scheduler(lock).steps().KeepApart(group, task->plan.shape);
    break;
  }
}

void JobLifecycle::OnBatchFailed(GroupId, const std::vector<TaskId>& tasks, const absl::Status& error) {
  GiveUp(tasks, error, /*blame=*/true);
}

void JobLifecycle::OnEnded(GroupId group, TaskId id) {
  const Lock lock = context_.monitor.Acquire();
  RequestScheduler& scheduler = context_.monitor.scheduler(lock);
  scheduler.steps().OnEnded(group, id);
  outcomes_.Release(lock, id);
  EnqueueAgain(lock, id);
  const LiveTask* task = context_.monitor.tasks(lock).Find(id);
  const bool never_ran = task != nullptr && !task->attempt.has_value() && !task->elsewhere &&
                         !scheduler.admission().QueuePosition(id).has_value();
  if (task != nullptr && (task->cancelled || never_ran)) outcomes_.Forget(lock, id, "cancelled");
  context_.monitor.NotifyWork(lock);
}

}  // namespace tessera::server
