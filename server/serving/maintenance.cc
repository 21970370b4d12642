#include "server/serving/maintenance.h"

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/threads/start_thread.h"
#include "server/api/job.h"
#include "server/pictures/uploaded_pictures.h"
#include "server/serving/storage_error.h"
#include "server/serving/watch_hub.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(250);
constexpr int64_t kRoundsPerReport = 4;
constexpr absl::Duration kSweepInterval = absl::Minutes(1);
constexpr int64_t kSweepLimit = 1000;
constexpr absl::Duration kSettleInterval = absl::Seconds(2);
constexpr int64_t kSettleLimit = 64;

}  // namespace

Maintenance::~Maintenance() {
  if (thread_.joinable()) thread_.join();
}

void Maintenance::Start() {
  thread_ = base::StartThread([this] {
    while (true) {
      {
        ServiceMonitor::Lock lock = context_.monitor.Acquire();
        if (context_.monitor.WaitForStop(lock, kTick)) return;
      }
      RunMaintenance();
    }
  });
}

void Maintenance::RunMaintenance() {
  EndWhatCannotRun();
  TryStorage();
  SettleImages();
  Sweep();
}

void Maintenance::EndWhatCannotRun() {
  const ServiceMonitor::Lock lock = context_.monitor.Acquire();
  RequestScheduler& scheduler = context_.monitor.scheduler(lock);
  const absl::Time now = context_.store.Now();
  scheduler.steps().EndOverdue(now);
  outcomes_.PostOverdue(lock);
  context_.groups.ReplaceAbandoned(lock);
  // These run on the pool, because they may wait for the disk.
  for (const auto& [task, reason] : scheduler.TakeTooLarge()) outcomes_.PostFailWaiting(task, reason);
  for (const TaskId task : scheduler.TakeExpired(now)) {
    outcomes_.PostFailWaiting(task, absl::DeadlineExceededError("the deadline of the job passed before it began"));
  }
  if (++rounds_ % kRoundsPerReport == 0) ReportQueuePositions(lock);
}

void Maintenance::ReportQueuePositions(const ServiceMonitor::Lock& lock) {
  RequestScheduler& scheduler = context_.monitor.scheduler(lock);
  for (const std::string& job : context_.hub.Watched()) {
    std::optional<int64_t> first;
    TaskId next = 0;
    for (const TaskId id : context_.monitor.tasks(lock).TasksOf(job)) {
      const std::optional<int64_t> position = scheduler.admission().QueuePosition(id);
      if (position.has_value() && (!first.has_value() || *position < *first)) {
        first = position;
        next = id;
      }
    }
    if (!first.has_value()) continue;
    context_.hub.Publish(job, QueuedEvent{.position = *first, .expected_wait = ExpectedWaitOf(scheduler, next)});
  }
}

void Maintenance::TryStorage() {
  context_.store.CheckPlace().IgnoreError();  // updates the store's trouble
  // A successful trial lets jobs be accepted again. It waits while failed writes are still retried, because a trial can
  // succeed where they do not.
  if (!context_.store.can_write() && outcomes_.writes_under_way() == 0) context_.store.TryWrite().IgnoreError();
  const StorageTrouble trouble = context_.store.trouble();
  if (!IsStorageStuck(trouble, disk_timeout_)) return;
  const ServiceMonitor::Lock lock = context_.monitor.Acquire();
  for (const std::string& job : context_.hub.Watched()) {
    if (context_.monitor.tasks(lock).IsStuck(job)) {
      context_.hub.Publish(job, ReleasedEvent{StorageErrorForCaller(trouble.state)});
    }
  }
}

void Maintenance::SettleImages() {
  const absl::Time now = context_.store.Now();
  if (now - settled_ <= kSettleInterval || !context_.store.can_write()) return;
  const absl::StatusOr<int64_t> settled = context_.store.SettleImages(kSettleLimit);
  // The storage's trouble reports images that could not be written; they stay where they are.
  if (!settled.ok() || *settled < kSettleLimit) settled_ = now;
}

void Maintenance::Sweep() {
  const absl::Time now = context_.store.Now();
  if (now - swept_ <= kSweepInterval && !context_.store.has_too_many_bytes()) return;
  swept_ = now;
  RemoveUnusedContents();
  const absl::StatusOr<SweepReport> report = context_.store.Sweep(kSweepLimit);
  if (!report.ok()) {
    context_.log({base::LogLevel::kWarning,
                  absl::StrCat("old jobs were not removed: ", std::string(report.status().message()))});
  } else if (report->jobs == kSweepLimit || report->oldest == kSweepLimit) {
    swept_ = absl::InfinitePast();  // more jobs are left
  }
}

void Maintenance::RemoveUnusedContents() {
  std::set<std::string> needed = context_.adapters.Digests();
  needed.merge(context_.pictures.NeededContents());
  {
    const ServiceMonitor::Lock lock = context_.monitor.Acquire();
    needed.merge(jobs_.NeededContents(lock));
  }
  context_.contents.RemoveUnused(needed);
}

}  // namespace tessera::server
