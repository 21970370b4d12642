// What the service does for its worker groups: hands out work, and keeps and tells what becomes of it.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/api/image_metadata.h"
#include "server/serving/durable_image_service.h"
#include "server/serving/storage_error.h"
#include "server/workers/last_output.h"

namespace tessera {
namespace {

constexpr size_t kMaxUnstored = 64;  // decoded and not yet on the disk: then groups wait
constexpr absl::Duration kStorePause =
    absl::Seconds(1);  // before a job is claimed again from a store that cannot write
constexpr int kPreviewQuality = 85;

std::string DeviceOf(const GroupRunnerOptions& group, int rank) {
  const std::string device = DeviceOfRank(group.load.device, rank, group.layout.ranks());
  return device == "cuda" ? "cuda:0" : device;
}

// The task was cancelled, or others have it, or the next process will tell.
bool IsOthersBusiness(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsNotFound(status) || absl::IsCancelled(status);
}

bool IsOnHost(const GroupRunnerOptions& group) { return DeviceOf(group, 0) == "cpu"; }

}  // namespace

// Other processes may end and other groups rest: a single image may count on all that their weights leave.
void DurableImageService::ShareMemory() {
  if (!options_.host_memory) return;
  double room = options_.host_memory().total;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const GroupRunnerOptions& group = groups_[i];
    if (replicas_[i].ended || !IsOnHost(group) || group.load.stream_blocks) continue;
    room -= static_cast<double>(WeightBytes(group.model, group.load.dtype));
  }
  if (room <= 0) return;  // loading will say so
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (!IsOnHost(groups_[i])) continue;
    replicas_[i].description.memory_bytes = room / replicas_[i].description.ranks;
    scheduler_.SetMemory(groups_[i].id, replicas_[i].description.memory_bytes);
  }
}

int64_t DurableImageService::RanksBeside(const GroupRunnerOptions& group) const {
  std::map<std::string, int64_t> ranks;
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (replicas_[i].ended) continue;
    const GroupRunnerOptions& other = groups_[i];
    for (int rank = 0; rank < other.layout.ranks(); ++rank) ++ranks[DeviceOf(other, rank)];
  }
  int64_t most = 1;
  for (int rank = 0; rank < group.layout.ranks(); ++rank) most = std::max(most, ranks[DeviceOf(group, rank)]);
  return most;
}

void DurableImageService::OnReady(GroupId id, const std::optional<DeviceRoom>& room) {
  const std::lock_guard lock(mutex_);
  const GroupRunnerOptions& group = groups_[static_cast<size_t>(id - 1)];
  Replica& replica = replicas_[static_cast<size_t>(id - 1)];
  if (std::exchange(replica.refused, false)) scheduler_.AddGroup(replica.description);
  const auto ranks = static_cast<double>(RanksBeside(group));
  if (options_.host_memory && IsOnHost(group)) {
    scheduler_.SetFreeMemory(id, options_.host_memory().available / ranks);
  } else if (room.has_value()) {
    scheduler_.SetMemory(id, static_cast<double>(room->most));
    scheduler_.SetFreeMemory(id, static_cast<double>(room->free) / ranks);
  }
  scheduler_.OnGroupReady(id, Now());
  if (draining_ || replica.leaving) scheduler_.Drain(id);
  Changed();
}

void DurableImageService::OnDied(GroupId group, const absl::Status& reason, bool blameless) {
  std::vector<TaskId> tasks, told;
  bool ending = false;
  {
    const std::lock_guard lock(mutex_);
    tasks = scheduler_.OnGroupDied(group);
    ending = stopping_;
    for (const TaskId id : tasks) {
      const auto [unstored, is_new] = unstored_.emplace(id, true);
      unstored->second = true;
      if (is_new) told.push_back(id);
    }
  }
  GiveUp(tasks, reason, /*blame=*/!blameless && !ending);
  const std::lock_guard lock(mutex_);
  for (const TaskId id : told) unstored_.erase(id);
  for (const TaskId id : tasks) {
    LiveTask* task = live_.Find(id);
    if (task != nullptr && std::exchange(task->again, false)) EnqueueAgain(*task);
  }
  Changed();
}

// What waits for it alone stays in the queue: it can be made once the group can start.
void DurableImageService::OnRefused(GroupId group) {
  const std::lock_guard lock(mutex_);
  replicas_[static_cast<size_t>(group - 1)].refused = true;
  scheduler_.RemoveGroup(group);
}

// What ran is queued again in the store, or quarantined; what is to run again is marked.
void DurableImageService::GiveUp(const std::vector<TaskId>& tasks, const absl::Status& reason, bool blame) {
  std::vector<TaskAttempt> attempts;
  std::vector<TaskId> judged_tasks;
  {
    const std::lock_guard lock(mutex_);
    for (const TaskId id : tasks) {
      LiveTask* task = live_.Find(id);
      if (task == nullptr || task->decoded || task->overdue) continue;
      if (task->cancelled) {
        Forget(id, "cancelled");
        continue;
      }
      task->again = true;
      task->steps_done = task->previews = 0;
      if (!task->attempt.has_value()) continue;
      attempts.push_back(*std::exchange(task->attempt, std::nullopt));
      judged_tasks.push_back(id);
    }
  }
  if (attempts.empty()) return;
  std::vector<Verdict> verdicts;
  const absl::Status kept = Persist(judged_tasks, [&] {
    if (!blame) return store_->GiveBack(attempts);
    absl::StatusOr<std::vector<Verdict>> judged = store_->GroupDied(attempts, WithoutLastOutput(reason.message()));
    if (!judged.ok()) return judged.status();
    verdicts = *std::move(judged);
    return absl::OkStatus();
  });
  if (!kept.ok() && !absl::IsCancelled(kept)) {
    for (const TaskId id : judged_tasks) Lose(id, kept);
  }
  for (const Verdict& verdict : verdicts) {
    const std::unique_lock lock(mutex_);
    LiveTask* task = live_.Find(verdict.attempt.task);
    if (task == nullptr) continue;
    if (verdict.state == TaskState::kQueued) {
      task->plan.alone = verdict.blame.alone;
    } else {
      TellEnded(verdict.attempt.task, verdict.state == TaskState::kQuarantined ? "quarantined" : "cancelled", reason);
    }
  }
}

StepPlan DurableImageService::Next(GroupId group) {
  const std::lock_guard lock(mutex_);
  planned_[group] = generation_;
  StepPlan plan = scheduler_.Next(group, Now());
  FailOverdue();
  return plan;
}

void DurableImageService::WaitForWork(GroupId group, absl::Duration patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoMilliseconds(patience),
                    [&] { return stopping_ || generation_ != planned_[group]; });
}

absl::StatusOr<RunnableTask> DurableImageService::Claim(GroupId group, TaskId id) {
  const absl::StatusOr<ClaimedTask> claimed = store_->Claim(id);
  const bool disk = IsStorageTrouble(claimed.status());
  if (disk) absl::SleepFor(kStorePause);  // or it would be tried in a circle
  const std::lock_guard lock(mutex_);
  LiveTask* task = live_.Find(id);
  if (!claimed.ok()) {
    if (task != nullptr && disk) task->again = task->stuck = true;
    if (disk) return claimed.status();
    const bool cancelled = absl::IsFailedPrecondition(claimed.status()) || absl::IsNotFound(claimed.status());
    // The store has failed a damaged row itself, unless it cannot.
    if (!cancelled && (!absl::IsDataLoss(claimed.status()) || !store_->can_write())) {
      Lose(id, claimed.status());
    } else if (task != nullptr) {
      TellEnded(id, cancelled ? "cancelled" : "failed", claimed.status());
    }
    return claimed.status();
  }
  if (task == nullptr) return absl::CancelledError("it was cancelled");
  task->attempt = claimed->claim;
  task->parameters = std::make_shared<JobParameters>(claimed->parameters);
  task->group = group;
  task->stuck = false;
  metrics_.Observe(ImageStage::kQueue, Now() - task->plan.enqueued);
  trace_.OnClaimed(task->image);
  return RunnableTask{.image = task->image,
                      .parameters = claimed->parameters,
                      .preview_after = PreviewSteps(claimed->parameters.steps, task->partial_images)};
}

void DurableImageService::OnStarted(GroupId group, TaskId id, const JobStarted& started) {
  metrics_.Observe(ImageStage::kEncode, absl::Seconds(started.seconds));
  if (started.cached) metrics_.CountCachedPrompt();
  const std::lock_guard lock(mutex_);
  scheduler_.OnStarted(group, id);
  if (const LiveTask* task = live_.Find(id); task != nullptr) live_.Tell(task->image.job, StartedEvent{});
}

void DurableImageService::OnStepped(GroupId group, const std::vector<TaskId>& tasks, double seconds) {
  if (!tasks.empty()) metrics_.Observe(ImageStage::kStep, absl::Seconds(seconds));
  const std::lock_guard lock(mutex_);
  scheduler_.OnStepped(group, seconds);
  for (const TaskId id : tasks) {
    LiveTask* task = live_.Find(id);
    if (task == nullptr) continue;
    ++task->steps_done;
    live_.Tell(task->image.job,
               StepEvent{.image = task->image.index, .step = task->steps_done, .steps = task->plan.steps});
  }
}

void DurableImageService::OnPreview(GroupId, TaskId id, const Image& image) {
  const std::lock_guard lock(mutex_);
  LiveTask* task = live_.Find(id);
  if (task == nullptr) return;
  const int32_t number = task->previews++;
  if (!live_.IsWatched(task->image.job)) return;
  pool_->Post([this, job = task->image.job, index = task->image.index, number, output = task->output, image] {
    OutputOptions smaller = output;
    if (smaller.format != ImageFormat::kPng && !smaller.quality.has_value()) smaller.quality = kPreviewQuality;
    absl::StatusOr<std::string> bytes = EncodeOutput(image, smaller);
    if (!bytes.ok()) return;
    const std::lock_guard told(mutex_);
    live_.Tell(job, PreviewEvent{.image = index,
                                 .preview = number,
                                 .width = image.width,
                                 .height = image.height,
                                 .format = output.format,
                                 .bytes = std::make_shared<const std::string>(*std::move(bytes))});
  });
}

void DurableImageService::OnDecoded(GroupId group, TaskId id, Image image, const JobStarted& started, double seconds) {
  metrics_.Observe(ImageStage::kDecode, absl::Seconds(seconds));
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || unstored_.size() < kMaxUnstored; });
  LiveTask* task = live_.Find(id);
  if (task == nullptr || !task->attempt.has_value() || task->cancelled) return;
  task->decoded = true;
  const GroupRunnerOptions& runner = groups_[static_cast<size_t>(group - 1)];
  unstored_.emplace(id, false);
  auto finished = std::make_shared<Finished>(Finished{.attempt = *task->attempt,
                                                      .task = *task,
                                                      .image = std::move(image),
                                                      .started = started,
                                                      .layout = runners_[static_cast<size_t>(group - 1)]->layout(),
                                                      .load = runner.load,
                                                      .model = replicas_[static_cast<size_t>(group - 1)].model});
  pool_->Post([this, finished] {
    const TaskId stored = finished->attempt.task;
    Finish(std::move(*finished));
    const std::lock_guard done(mutex_);
    unstored_.erase(stored);
    changed_.notify_all();
  });
}

void DurableImageService::Finish(Finished finished) {
  const absl::Time begun = trace_.Now();
  const JobParameters& parameters = *finished.task.parameters;
  ImageParameters metadata = MetadataOf(parameters, finished.started.sampler, finished.model->id,
                                        finished.model->description, finished.load, finished.layout);
  const bool lossless = IsLossless(finished.layout, parameters.steps);
  const absl::StatusOr<std::string> text = FormatParameters(metadata);
  absl::StatusOr<std::string> file = EncodeOutput(finished.image, finished.task.output, text.value_or(""));
  // Only JPEG has a bound for what it carries beside its pixels.
  if (!file.ok()) file = EncodeOutput(finished.image, finished.task.output);
  if (!file.ok()) return FailTask(finished.attempt, file.status());
  const ImageOrigin origin = {.width = finished.image.width,
                              .height = finished.image.height,
                              .format = finished.task.output.format,
                              .layout = LayoutText(finished.layout),
                              .lossless = lossless,
                              .warnings = finished.started.warnings};
  const absl::Time encoded = trace_.Now();
  const absl::Status kept =
      Persist({finished.attempt.task}, [&] { return store_->Finish(finished.attempt, *file, origin); });
  trace_.OnImageEncoded(finished.task.image, begun, encoded);
  if (IsOthersBusiness(kept)) return ForgetIfCancelled(finished.attempt.task);
  if (!kept.ok()) return FailTask(finished.attempt, kept);
  const std::lock_guard lock(mutex_);
  metrics_.Observe(ImageStage::kImage, Now() - finished.task.plan.enqueued);
  TellEnded(finished.attempt.task, "done");
}

void DurableImageService::FailTask(const TaskAttempt& attempt, const absl::Status& error) {
  const absl::Status kept = Persist({attempt.task}, [&] { return store_->Fail(attempt, error); });
  if (IsOthersBusiness(kept)) return ForgetIfCancelled(attempt.task);
  if (!kept.ok()) return Lose(attempt.task, error);
  const std::lock_guard lock(mutex_);
  TellEnded(attempt.task, "failed", error);
}

void DurableImageService::FailWaiting(TaskId task, const absl::Status& error) {
  const absl::Status kept = Persist({task}, [&] { return store_->FailQueued(task, error); });
  if (IsOthersBusiness(kept)) return;
  if (!kept.ok()) return Lose(task, error);
  const std::lock_guard lock(mutex_);
  TellEnded(task, "failed", error);
}

void DurableImageService::ForgetIfCancelled(TaskId id) {
  const std::lock_guard lock(mutex_);
  if (const LiveTask* task = live_.Find(id); task != nullptr && task->cancelled) Forget(id, "cancelled");
}

// A caller who left a job is told only when he asks; an operator here.
void DurableImageService::LogFailure(const LiveTask& task, const std::string& outcome,
                                     const absl::Status& error) const {
  const bool defect = outcome == "quarantined" || absl::IsInternal(error) || absl::IsUnknown(error) ||
                      absl::IsDataLoss(error) || absl::IsUnavailable(error);
  const std::string reason(error.message());
  LogLine line(defect ? LogLevel::kError : LogLevel::kWarning,
               absl::StrCat("image ", task.image.index, " of job ", task.image.job, " is ", outcome, ": ", reason),
               {{"job", task.image.job},
                {"image_index", task.image.index},
                {"outcome", outcome},
                {"error", absl::StatusCodeToString(error.code())},
                {"reason", reason},
                {"tenant", task.plan.key},
                {"model", task.plan.shape.model},
                {"traceparent", task.image.trace_parent}});
  if (task.group != 0) line.fields["group"] = groups_[static_cast<size_t>(task.group - 1)].name;
  line.event = "image_failed";
  options_.log(line);
}

void DurableImageService::TellEnded(TaskId id, const std::string& outcome, const absl::Status& error) {
  const LiveTask* task = live_.Find(id);
  if (task == nullptr) return;
  if (!task->cancelled && (outcome == "failed" || outcome == "quarantined")) LogFailure(*task, outcome, error);
  if (!task->cancelled) metrics_.CountImage(outcome);  // or it is counted already
  const std::string job = task->image.job, tenant = task->plan.key;
  Forget(id, outcome);
  if (!live_.IsWatched(job)) return;
  const absl::StatusOr<JobRecord> record = store_->Get(tenant, job);
  if (!record.ok()) return live_.LetGo(job, StorageErrorForCaller(record.status()));
  const Job now = JobOf(*record);
  if (IsEnded(now.state)) return live_.TellEnd(job, now);
  for (const FinishedImage& image : now.images) live_.Tell(job, ImageEvent{image});
}

void DurableImageService::OnFailed(GroupId, TaskId id, const absl::Status& error) {
  std::optional<TaskAttempt> attempt;
  {
    const std::lock_guard lock(mutex_);
    if (const LiveTask* task = live_.Find(id); task != nullptr) attempt = task->attempt;
    if (attempt.has_value()) unstored_.emplace(id, false);
  }
  if (!attempt.has_value()) return;
  pool_->Post([this, attempt = *attempt, told = absl::Status(error.code(), WithoutLastOutput(error.message()))] {
    FailTask(attempt, told);
    const std::lock_guard done(mutex_);
    unstored_.erase(attempt.task);
    changed_.notify_all();
  });
}

void DurableImageService::OnBatchDiffers(GroupId group, const std::vector<TaskId>& tasks) {
  const std::lock_guard lock(mutex_);
  for (const TaskId id : tasks) {
    const LiveTask* task = live_.Find(id);
    if (task == nullptr) continue;  // cancelled meanwhile; they are all of one class
    scheduler_.KeepApart(group, task->plan.shape);
    break;
  }
}

void DurableImageService::OnBatchFailed(GroupId, const std::vector<TaskId>& tasks, const absl::Status& error) {
  GiveUp(tasks, error, /*blame=*/true);
}

void DurableImageService::OnEnded(GroupId group, TaskId id) {
  const std::lock_guard lock(mutex_);
  scheduler_.OnEnded(group, id, Now());
  if (const auto unstored = unstored_.find(id); unstored != unstored_.end()) unstored->second = true;
  LiveTask* task = live_.Find(id);
  if (task != nullptr && std::exchange(task->again, false)) EnqueueAgain(*task);
  const bool never_ran = task != nullptr && !task->attempt.has_value() && !scheduler_.QueuePosition(id).has_value();
  if (task != nullptr && (task->cancelled || never_ran)) Forget(id, "cancelled");
  Changed();
}

void DurableImageService::EnqueueAgain(LiveTask& task) {
  scheduler_.Enqueue(task.plan, Now()).IgnoreError();
  trace_.OnQueuedAgain(task.image);
}

void DurableImageService::Forget(TaskId id, const std::string& outcome) {
  if (const LiveTask* task = live_.Find(id); task != nullptr) trace_.OnForgotten(task->image, outcome);
  live_.Forget(id);
}

}  // namespace tessera
