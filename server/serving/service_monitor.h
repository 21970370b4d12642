// The one lock of the service, and what its parts decide together under it: the scheduler, the tasks that have not
// ended, and whether the service drains or ends.
//
// Whatever needs the lock takes a Lock, which only Acquire makes; nothing waits for a disk or a device while it has
// one. A plain mutex is enough: nobody outside the service is called under it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "absl/time/time.h"
#include "server/scheduling/request_scheduler.h"
#include "server/serving/live_tasks.h"

namespace tessera::server {

class ServiceMonitor final {
 public:
  using Lock = std::unique_lock<std::mutex>;

  explicit ServiceMonitor(const SchedulerOptions& scheduler) : scheduler_(scheduler) {}

  [[nodiscard]] Lock Acquire() { return Lock(mutex_); }

  RequestScheduler& scheduler(const Lock&) { return scheduler_; }
  LiveTasks& tasks(const Lock&) { return tasks_; }

  // There is something new to plan.
  void NotifyWork(const Lock&) {
    ++generation_;
    changed_.notify_all();
  }
  uint64_t generation(const Lock&) const { return generation_; }

  // Something else has changed that somebody may wait for.
  void Notify() { changed_.notify_all(); }

  // Gives the lock up until the condition holds.
  template <typename Condition>
  void Wait(Lock& lock, Condition condition) {
    changed_.wait(lock, condition);
  }
  // Gives the lock up until the condition holds or the time is over; returns whether the condition holds.
  template <typename Condition>
  bool WaitFor(Lock& lock, absl::Duration timeout, Condition condition) {
    return changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), condition);
  }
  // Until anything changes, or the time is over.
  void WaitForChange(Lock& lock, absl::Duration timeout) {
    changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout));
  }
  // Until the service ends, or the time is over; whether it ends.
  bool WaitForStop(Lock& lock, absl::Duration timeout) {
    return WaitFor(lock, timeout, [this] { return stopping_; });
  }

  // The process ends: what is not done by then is the next one's.
  void Stop() {
    const Lock lock = Acquire();
    stopping_ = true;
    changed_.notify_all();
  }
  bool stopping(const Lock&) const { return stopping_; }

  // No more jobs are accepted.
  void StartDraining(const Lock& lock) {
    draining_ = true;
    NotifyWork(lock);
  }
  bool draining() const { return draining_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  RequestScheduler scheduler_;
  LiveTasks tasks_;
  uint64_t generation_ = 0;  // of what there is to plan
  bool stopping_ = false;
  std::atomic<bool> draining_ = false;  // changed under mutex_
};

}  // namespace tessera::server
