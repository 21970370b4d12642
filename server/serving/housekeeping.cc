// What the service does about time that passes, and about a disk that does not take what must be kept.
#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "server/serving/durable_image_service.h"
#include "server/serving/storage_error.h"

namespace tessera {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(250);
constexpr absl::Duration kSweepInterval = absl::Minutes(1);
constexpr int64_t kSweepLimit = 1000;
constexpr absl::Duration kDiskPause = absl::Seconds(1);

// Whether nobody is to wait for the disk any longer. What a damaged database does not take is not waited for at all.
bool IsStuck(const StorageTrouble& trouble, absl::Duration patience) {
  return trouble.state != StorageState::kOk && trouble.state != StorageState::kDamaged && trouble.duration >= patience;
}

}  // namespace

void DurableImageService::KeepHouse() {
  absl::Time swept = absl::InfinitePast();
  int64_t ticks = 0;
  while (true) {
    std::vector<TaskId> expired;
    std::vector<std::pair<TaskId, absl::Status>> too_large;
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, absl::ToChronoMilliseconds(kTick), [this] { return stopping_; })) return;
      scheduler_.EndOverdue(Now());
      FailOverdue();
      ReplaceAbandoned();
      expired = scheduler_.TakeExpired(Now());
      too_large = scheduler_.TakeTooLarge();
      if (++ticks % 4 == 0) TellQueuePositions();
    }
    for (const TaskId task : expired) {
      too_large.emplace_back(task, absl::DeadlineExceededError("the deadline of the job passed before it began"));
    }
    // Which may wait for the disk.
    for (const auto& [task, reason] : too_large) pool_->Post([this, task, reason] { FailWaiting(task, reason); });
    store_->CheckPlace().IgnoreError();  // which tells the store
    // And jobs are welcome again; not while what failed is still tried: a trial need not meet what keeps it.
    if (!store_->can_write() && writes_under_way_ == 0) store_->TryWrite().IgnoreError();
    LetGoOfStuck();
    if (Now() - swept > kSweepInterval || store_->has_too_many_bytes()) {
      swept = Now();
      const absl::StatusOr<SweepReport> report = store_->Sweep(kSweepLimit);
      if (!report.ok()) {
        options_.log(
            {LogLevel::kWarning, absl::StrCat("old jobs were not removed: ", std::string(report.status().message()))});
      } else if (report->jobs == kSweepLimit || report->oldest == kSweepLimit) {
        swept = absl::InfinitePast();  // there are more
      }
    }
  }
}

void DurableImageService::Drain(absl::Duration patience) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  for (const GroupRunnerOptions& group : groups_) scheduler_.Drain(group.id);
  Changed();
  const absl::Duration end = SteadyNow() + patience;
  while (scheduler_.resident() > 0 || !unstored_.empty()) {
    const absl::Duration left = end - SteadyNow();
    // What a disk does not take is made again by the next process, however long this one waits.
    if (left <= absl::ZeroDuration() || IsStuck(store_->trouble(), options_.disk_patience)) break;
    changed_.wait_for(lock, absl::ToChronoMilliseconds(std::min(left, kTick)));
  }
  let_go_ = true;
  live_.LetGo(Draining());
}

// Whether the trouble is over is found out by trying: the next look of the housekeeper may be a moment away.
absl::Status DurableImageService::CheckStorage() {
  if (draining_ || store_->can_write()) return absl::OkStatus();
  if (writes_under_way_ == 0 && store_->TryWrite().ok()) return absl::OkStatus();
  return StorageErrorForCaller(store_->trouble().state);
}

absl::Status DurableImageService::Persist(const std::vector<TaskId>& tasks,
                                          const std::function<absl::Status()>& write) {
  const auto set_stuck = [&](bool stuck) {
    for (const TaskId id : tasks) {
      if (LiveTask* task = live_.Find(id); task != nullptr) task->stuck = stuck;
    }
  };
  ++writes_under_way_;
  const absl::Cleanup end = [this] { --writes_under_way_; };
  while (true) {
    absl::Status status = write();
    std::unique_lock lock(mutex_);
    const bool disk = IsStorageTrouble(status);
    set_stuck(disk);
    if (!disk) return status;
    if (changed_.wait_for(lock, absl::ToChronoMilliseconds(kDiskPause), [this] { return stopping_; })) {
      return absl::CancelledError("the process ends");
    }
  }
}

void DurableImageService::Lose(TaskId id, const absl::Status& error) {
  const std::lock_guard lock(mutex_);
  LiveTask* task = live_.Find(id);
  if (task == nullptr) return;
  task->again = false;
  lost_[id] = {.error = error, .ended = Now()};
  TellEnded(
      id, "failed",
      absl::Status(error.code(), absl::StrCat(error.message(), "; the job store cannot keep that it has failed")));
}

void DurableImageService::LetGoOfStuck() {
  const StorageTrouble trouble = store_->trouble();
  if (!IsStuck(trouble, options_.disk_patience)) return;
  const std::lock_guard lock(mutex_);
  for (const std::string& job : live_.Stuck()) live_.LetGo(job, StorageErrorForCaller(trouble.state));
}

JobRecord DurableImageService::WithLost(const JobRecord& record) const {
  JobRecord told = record;
  for (TaskRecord& task : told.tasks) {
    const auto lost = lost_.find(task.id);
    if (lost == lost_.end() || IsEnded(task.state)) continue;
    task.state = TaskState::kFailed;
    task.error = lost->second.error;
    task.ended = lost->second.ended;
  }
  return told;
}

// What has left its worker runs until the disk has it.
int64_t DurableImageService::RunningJobs() const {
  return scheduler_.resident() + std::ranges::count_if(unstored_, [](const auto& task) { return task.second; });
}

}  // namespace tessera
