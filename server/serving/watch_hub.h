// WatchHub keeps the watchers of each job and delivers their events one at a time and in order, on a thread.
//
// Publishing only queues an event, so a publisher may hold any lock. A subscription is made in two steps, so that no
// event is missed while the job's state is read: Hold keeps later events back, and Begin first delivers the events up
// to the state that was read. Thread-safe.
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
#include "server/api/job.h"

namespace tessera::server {

class WatchHub final {
 public:
  class Subscription;

  WatchHub();
  ~WatchHub();  // delivers queued events first; outlives every subscription

  // Delivers nothing before Begin. An event that ends a watch is the subscription's last one.
  std::shared_ptr<Subscription> Hold(const std::string& job, WatchedEvents events, ImageService::Listener listener);
  // `so_far` are the events up to the job's state that was read.
  void Begin(const std::shared_ptr<Subscription>& subscription, const std::vector<JobEvent>& so_far);
  // After this returns, no call of the listener begins. Waits for a running call, unless End is called from within it.
  void End(const std::shared_ptr<Subscription>& subscription);

  bool IsWatched(const std::string& job) const;
  std::vector<std::string> Watched() const;  // jobs

  // Skips images that a subscription already got.
  void Publish(const std::string& job, const JobEvent& event);
  // Publishes all images of the job, then its end.
  void PublishEnd(const Job& ended);
  // Ends every current and later watch with a ReleasedEvent; returns after the events were delivered.
  void ReleaseAll(const absl::Status& reason);

 private:
  void Queue(const std::shared_ptr<Subscription>& subscription, const JobEvent& event);  // requires mutex_
  void Deliver();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::map<std::string, std::vector<std::shared_ptr<Subscription>>> watches_;
  std::deque<std::pair<std::shared_ptr<Subscription>, JobEvent>> queue_;
  const Subscription* delivering_ = nullptr;
  std::optional<absl::Status> released_;  // set when all watches were ended, with the reason
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace tessera::server
