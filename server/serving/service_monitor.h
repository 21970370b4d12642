// ServiceMonitor is the one lock of the service and the state that it guards: the scheduler, the unfinished tasks, and
// whether the service is draining or stopping.
//
// Whatever needs the lock takes a Lock, which only Acquire creates. No code waits for a disk or a device while it holds
// one. A plain mutex suffices, because no code outside the service is called under it.
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

  // There is new work to plan.
  void NotifyWork(const Lock&) {
    ++generation_;
    changed_.notify_all();
  }
  uint64_t generation(const Lock&) const { return generation_; }

  // Wakes all waiters after any other change.
  void Notify() { changed_.notify_all(); }

  // Releases the lock until the condition holds.
  template <typename Condition>
  void Wait(Lock& lock, Condition condition) {
    changed_.wait(lock, condition);
  }
  // Releases the lock until the condition holds or the timeout expires; returns whether the condition holds.
  template <typename Condition>
  bool WaitFor(Lock& lock, absl::Duration timeout, Condition condition) {
    return changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), condition);
  }
  // Releases the lock until anything changes or the timeout expires.
  void WaitForChange(Lock& lock, absl::Duration timeout) {
    changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout));
  }
  // Releases the lock until the service stops or the timeout expires; returns whether it stops.
  bool WaitForStop(Lock& lock, absl::Duration timeout) {
    return WaitFor(lock, timeout, [this] { return stopping_; });
  }

  // The process ends; unfinished work is left to the next process.
  void Stop() {
    const Lock lock = Acquire();
    stopping_ = true;
    changed_.notify_all();
  }
  bool stopping(const Lock&) const { return stopping_; }

  // Stops accepting jobs.
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
  uint64_t generation_ = 0;  // incremented when there is new work to plan
  bool stopping_ = false;
  std::atomic<bool> draining_ = false;  // changed under mutex_
};

}  // namespace tessera::server
