#include "server/serving/shared_queue.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/macros/planted.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/serving/watch_hub.h"

namespace tessera::server {
namespace {

bool IsWaiting(const ScheduledTask* task) { return task != nullptr && task->phase == TaskPhase::kWaiting; }

}  // namespace

SharedQueue::SharedQueue(const ServingContext& context, JobLifecycle& jobs, JobOutcomes& outcomes)
    : context_(context), jobs_(jobs), outcomes_(outcomes) {
  context_.store.Observe(this);
}

SharedQueue::~SharedQueue() { context_.store.Observe(nullptr); }

bool SharedQueue::IsServed(const std::string& model) const {
  const ServedModels::Model found = context_.models.Find(model);
  return found != nullptr && found->unreadable.ok();
}

void SharedQueue::OnChanged(const JobRecord& job) {
  const Lock lock = context_.monitor.Acquire();
  for (const TaskRecord& task : job.tasks) Follow(lock, job, task);
  context_.monitor.NotifyWork(lock);
  if (context_.hub.IsWatched(job.id)) NotifyWatchers(lock, job);
}

void SharedQueue::NotifyWatchers(const Lock& lock, const JobRecord& record) {
  const Job job = JobOf(context_, lock, record);
  if (IsEnded(job.state)) return context_.hub.PublishEnd(job);
  for (const FinishedImage& image : job.images) context_.hub.Publish(job.id, ImageEvent{image});
}

void SharedQueue::Follow(const Lock& lock, const JobRecord& job, const TaskRecord& task) {
  LiveTask* live = context_.monitor.tasks(lock).Find(task.id);
  if (IsEnded(task.state)) {
    ForgetUnserved(lock, task.id);
    if (live != nullptr) FollowEnd(lock, *live, task);
    return;
  }
  const bool runs = task.state == TaskState::kRunning;
  if (runs && !task.elsewhere) return;  // the claim was made here, and this process knows more of it
  if (live == nullptr) {
    if (!IsServed(job.request->model)) {
      unserved_[task.id] = job.request->model;
      context_.monitor.tasks(lock).HoldContents(task.id, job.request->parameters);
      return;
    }
    ForgetUnserved(lock, task.id);
    live = jobs_.Add(lock, QueuedTaskOf(job, task));
    if (live == nullptr) return;
    live->moves = 0;
  }
  const int64_t moves = MovesOf(task.state, task.attempt);
  const bool is_news = moves > live->moves || (moves == live->moves && !runs && live->elsewhere);
  if (!is_news && !base::Planted("stale_notice_is_followed")) return;
  live->moves = moves;
  live->plan.isolated = task.blame.isolated;
  if (runs) {
    FollowRunning(lock, *live, task.id);
  } else {
    FollowQueued(lock, *live, task.id);
  }
}

void SharedQueue::ForgetUnserved(const Lock& lock, TaskId id) {
  unserved_.erase(id);
  context_.monitor.tasks(lock).ReleaseContents(id);
}

void SharedQueue::LoseHold(const Lock& lock, LiveTask& live, TaskId id) {
  live.attempt.reset();
  live.decoded = live.overdue = live.stuck = false;
  live.steps_done = live.previews = 0;
  live.group_seconds = 0;
  context_.monitor.scheduler(lock).Cancel(id);
}

void SharedQueue::FollowQueued(const Lock& lock, LiveTask& live, TaskId id) {
  RequestScheduler& scheduler = context_.monitor.scheduler(lock);
  jobs_.SetElsewhere(lock, id, false);
  // This server's lease has expired, so its group's work on the task is discarded.
  if (live.attempt.has_value()) {
    LoseHold(lock, live, id);
    live.again = true;
  }
  const ScheduledTask* scheduled = scheduler.tasks().Find(id);
  // A group that has just taken the task may still claim it. A group that is dropping the task enqueues it again.
  if (scheduled != nullptr) return;
  live.again = false;
  scheduler.Enqueue(live.plan, context_.store.Now()).IgnoreError();
}

void SharedQueue::FollowRunning(const Lock& lock, LiveTask& live, TaskId id) {
  const ScheduledTask* scheduled = context_.monitor.scheduler(lock).tasks().Find(id);
  // A group is claiming the task; its claim will fail as too late.
  if (!live.attempt.has_value() && scheduled != nullptr && !IsWaiting(scheduled) && !live.again) return;
  LoseHold(lock, live, id);
  live.again = false;
  jobs_.SetElsewhere(lock, id, true);
  context_.hub.Publish(live.image.job, StartedEvent{});
}

void SharedQueue::FollowEnd(const Lock& lock, LiveTask& live, const TaskRecord& task) {
  // Changes that this server made come back as notices too.
  const bool is_own = live.attempt.has_value() && live.attempt->attempt == task.attempt;
  if (is_own && task.state != TaskState::kCancelled) return;
  jobs_.SetElsewhere(lock, task.id, false);
  live.cancelled = true;
  live.again = false;
  if (!is_own) {
    live.attempt.reset();
    live.exported_elsewhere = true;
  }
  RequestScheduler& scheduler = context_.monitor.scheduler(lock);
  const bool is_held = scheduler.tasks().Find(task.id) != nullptr || outcomes_.IsUnstored(lock, task.id);
  if (scheduler.Cancel(task.id) || !is_held) outcomes_.Forget(lock, task.id, std::string(TaskStateName(task.state)));
}

std::vector<uint64_t> SharedQueue::Compare(absl::Span<const OpenTask> open) {
  std::vector<uint64_t> others;
  std::unordered_set<TaskId> listed;
  const Lock lock = context_.monitor.Acquire();
  for (const OpenTask& task : open) {
    listed.insert(task.task);
    const LiveTask* live = context_.monitor.tasks(lock).Find(task.task);
    if (live == nullptr) {
      const auto unserved = unserved_.find(task.task);
      const bool runs_here = task.state == TaskState::kRunning && !task.elsewhere;
      if (!runs_here && (unserved == unserved_.end() || IsServed(unserved->second))) others.push_back(task.task);
      continue;
    }
    const int64_t moves = MovesOf(task.state, task.attempt);
    const bool waits = task.state == TaskState::kQueued;
    if (moves > live->moves ? waits || task.elsewhere : moves == live->moves && waits && live->elsewhere) {
      others.push_back(task.task);
    }
  }
  for (const TaskId task : context_.monitor.tasks(lock).All()) {
    if (!listed.contains(task)) others.push_back(task);
  }
  for (const auto& [task, model] : unserved_) {
    if (!listed.contains(task)) others.push_back(task);
  }
  return others;
}

void SharedQueue::OnGone(uint64_t task) {
  const Lock lock = context_.monitor.Acquire();
  ForgetUnserved(lock, task);
  LiveTask* live = context_.monitor.tasks(lock).Find(task);
  if (live != nullptr) FollowEnd(lock, *live, {.id = task, .state = TaskState::kCancelled});
}

}  // namespace tessera::server
