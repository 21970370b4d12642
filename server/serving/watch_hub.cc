#include "server/serving/watch_hub.h"

#include <algorithm>
#include <set>

#include "base/threads/start_thread.h"

namespace tessera::server {

class WatchHub::Subscription {
 public:
  Subscription(std::string job, WatchedEvents events, ImageService::Listener listener)
      : job(std::move(job)), events(events), listener(std::move(listener)) {}

  const std::string job;
  const WatchedEvents events;
  const ImageService::Listener listener;
  // Guarded by the hub's mutex.
  bool held = true;             // until Begin
  std::vector<JobEvent> early;  // events published before Begin
  bool active = true;
  bool ended = false;        // the last event is queued
  std::set<int32_t> images;  // indexes of images already queued
};

WatchHub::WatchHub() : thread_(base::StartThread([this] { Deliver(); })) {}

WatchHub::~WatchHub() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<WatchHub::Subscription> WatchHub::Hold(const std::string& job, WatchedEvents events,
                                                       ImageService::Listener listener) {
  auto subscription = std::make_shared<Subscription>(job, events, std::move(listener));
  const std::lock_guard lock(mutex_);
  watches_[job].push_back(subscription);
  return subscription;
}

void WatchHub::Begin(const std::shared_ptr<Subscription>& subscription, const std::vector<JobEvent>& so_far) {
  const std::lock_guard lock(mutex_);
  subscription->held = false;
  for (const JobEvent& event : so_far) Queue(subscription, event);
  for (const JobEvent& event : std::exchange(subscription->early, {})) {
    // The queue position in `so_far` is newer.
    if (!std::holds_alternative<QueuedEvent>(event)) Queue(subscription, event);
  }
  if (released_.has_value()) Queue(subscription, ReleasedEvent{*released_});
}

void WatchHub::End(const std::shared_ptr<Subscription>& subscription) {
  std::unique_lock lock(mutex_);
  subscription->active = false;
  if (const auto found = watches_.find(subscription->job); found != watches_.end()) {
    std::erase(found->second, subscription);
    if (found->second.empty()) watches_.erase(found);
  }
  if (std::this_thread::get_id() == thread_.get_id()) return;
  changed_.wait(lock, [&] { return delivering_ != subscription.get(); });
}

bool WatchHub::IsWatched(const std::string& job) const {
  const std::lock_guard lock(mutex_);
  return watches_.contains(job);
}

std::vector<std::string> WatchHub::Watched() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> jobs;
  for (const auto& [job, subscriptions] : watches_) jobs.push_back(job);
  return jobs;
}

void WatchHub::Queue(const std::shared_ptr<Subscription>& subscription, const JobEvent& event) {
  if (!subscription->active || subscription->ended || !IsAmong(subscription->events, event)) return;
  if (subscription->held) return subscription->early.push_back(event);
  if (const auto* image = std::get_if<ImageEvent>(&event)) {
    if (!subscription->images.insert(image->image.index).second) return;
  }
  subscription->ended = IsLast(event);
  queue_.emplace_back(subscription, event);
  changed_.notify_all();
}

void WatchHub::Publish(const std::string& job, const JobEvent& event) {
  const std::lock_guard lock(mutex_);
  const auto found = watches_.find(job);
  if (found == watches_.end()) return;
  for (const std::shared_ptr<Subscription>& subscription : found->second) Queue(subscription, event);
  if (IsLast(event)) watches_.erase(found);
}

void WatchHub::PublishEnd(const Job& ended) {
  for (const FinishedImage& image : ended.images) Publish(ended.id, ImageEvent{image});
  Publish(ended.id, EndedEvent{ended});
}

void WatchHub::ReleaseAll(const absl::Status& reason) {
  std::unique_lock lock(mutex_);
  released_ = reason;
  for (const auto& [job, subscriptions] : std::exchange(watches_, {})) {
    for (const std::shared_ptr<Subscription>& subscription : subscriptions) Queue(subscription, ReleasedEvent{reason});
  }
  changed_.wait(lock, [this] { return queue_.empty() && delivering_ == nullptr; });
}

void WatchHub::Deliver() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    auto [subscription, event] = std::move(queue_.front());
    queue_.pop_front();
    if (!subscription->active) {
      changed_.notify_all();
      continue;
    }
    delivering_ = subscription.get();
    lock.unlock();
    subscription->listener(event);
    subscription.reset();  // may destroy the listener, so the lock must not be held
    lock.lock();
    delivering_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace tessera::server
