// What the service does about groups that work for nobody any more.
#include <algorithm>
#include <utility>

#include "server/serving/durable_image_service.h"

namespace tessera {
namespace {

// A group that is free again sooner is not worth the start of its workers.
constexpr absl::Duration kShortestReplacement = absl::Seconds(3);

}  // namespace

void DurableImageService::FailOverdue() {
  for (const TaskId id : scheduler_.TakeOverdue()) {
    LiveTask* task = live_.Find(id);
    if (task == nullptr || !task->attempt.has_value()) continue;
    task->overdue = true;
    pool_->Post([this, attempt = *task->attempt] {
      FailTask(attempt, absl::DeadlineExceededError("the deadline of the job passed while it ran"));
    });
  }
}

void DurableImageService::ReplaceAbandoned() {
  for (size_t i = 0; i < runners_.size(); ++i) {
    const GroupId group = groups_[i].id;
    if (!scheduler_.IsAbandoned(group)) continue;
    const absl::Duration since = runners_[i]->SinceLastAnswer();
    // What has taken longer than was predicted may take as long again.
    const absl::Duration left = std::max(scheduler_.LeastTimeInFlight(group) - since, since);
    if (left <= std::max(runners_[i]->ReloadTime(), kShortestReplacement)) continue;
    scheduler_.Retire(group);
    runners_[i]->Replace("all that it worked on was cancelled or is too late, and it would have gone on with it");
  }
}

}  // namespace tessera
