// Who watches which job, and the events that they are told: one at a time and in order, by a thread of the hub's own.
//
// Publishing only queues an event, so it may be done under any lock of the publisher's. A subscription is made in two
// steps, so that none of the job's events is missed while its state is read: Hold keeps what happens from then on,
// Begin puts what had happened until the state was read before it. Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/api/image_service.h"

namespace tessera::server {

class WatchHub final {
 public:
  class Subscription;

  WatchHub();
  ~WatchHub();  // delivers what is queued first; outlives every subscription

  // Nothing is delivered before Begin. An event that ends a watch is the last one of the subscription.
  std::shared_ptr<Subscription> Hold(const std::string& job, WatchedEvents events, ImageService::Listener listener);
  // `so_far`: what had happened when the job's state was read.
  void Begin(const std::shared_ptr<Subscription>& subscription, const std::vector<JobEvent>& so_far);
  // No call of the listener begins after this; waits for one that is under way, unless it is made inside that call.
  void End(const std::shared_ptr<Subscription>& subscription);

  bool IsWatched(const std::string& job) const;
  std::vector<std::string> Watched() const;  // jobs

  // An image that a subscription was told before is left out.
  void Publish(const std::string& job, const JobEvent& event);
  // All images of the job, then its end.
  void PublishEnd(const Job& ended);
  // Ends every watch, and those that begin later, with a ReleasedEvent; returns when it was delivered.
  void ReleaseAll(const absl::Status& reason);

 private:
  void Queue(const std::shared_ptr<Subscription>& subscription, const JobEvent& event);  // with mutex_
  void Deliver();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::map<std::string, std::vector<std::shared_ptr<Subscription>>> watches_;
  std::deque<std::pair<std::shared_ptr<Subscription>, JobEvent>> queue_;
  const Subscription* delivering_ = nullptr;
  std::optional<absl::Status> released_;  // all of them, for this reason
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace tessera::server
