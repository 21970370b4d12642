#include "server/serving/watched_job.h"

#include <utility>
#include <vector>

#include "base/macros/planted.h"
#include "server/api/job.h"
#include "server/serving/storage_error.h"
#include "server/serving/watch_hub.h"

namespace tessera::server {
namespace {

class HubWatch final : public JobWatch {
 public:
  HubWatch(WatchHub& hub, std::shared_ptr<WatchHub::Subscription> subscription)
      : hub_(hub), subscription_(std::move(subscription)) {}
  ~HubWatch() override { hub_.End(subscription_); }

 private:
  WatchHub& hub_;
  const std::shared_ptr<WatchHub::Subscription> subscription_;
};

std::vector<JobEvent> EventsSoFar(const Job& job) {
  std::vector<JobEvent> events;
  if (job.queue_position.has_value()) {
    events.emplace_back(QueuedEvent{.position = *job.queue_position, .expected_wait = job.expected_wait});
  }
  if (job.started.has_value()) events.emplace_back(StartedEvent{});
  for (const FinishedImage& image : job.images) events.emplace_back(ImageEvent{image});
  if (IsEnded(job.state)) events.emplace_back(EndedEvent{job});
  return events;
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobWatch>> WatchJob(const ServingContext& context, const std::string& tenant,
                                                   const std::string& job, WatchedEvents events,
                                                   ImageService::Listener listener) {
  std::shared_ptr<WatchHub::Subscription> subscription;
  std::unique_ptr<HubWatch> watch;
  const auto subscribe = [&] {
    subscription = context.hub.Hold(job, events, std::move(listener));
    watch = std::make_unique<HubWatch>(context.hub, subscription);
  };
  if (!base::Planted("watch_missed_on_adoption")) subscribe();
  const absl::StatusOr<JobRecord> record = context.store.Get(tenant, job);
  if (!record.ok()) return StorageErrorForCaller(record.status(), context.store.trouble().state);
  if (subscription == nullptr) subscribe();
  std::vector<JobEvent> so_far;
  {
    const ServiceMonitor::Lock lock = context.monitor.Acquire();
    so_far = EventsSoFar(JobOf(context, lock, *record));
  }
  context.hub.Begin(subscription, so_far);
  return watch;
}

}  // namespace tessera::server
