// CallSlots bounds how many calls to other servers run at once. Thread-safe.
#pragma once

#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"
#include "base/time/steady_time.h"

namespace tessera::server {

class CallSlots {
 public:
  explicit CallSlots(int count) : free_(count) {}

  CallSlots(const CallSlots&) = delete;
  CallSlots& operator=(const CallSlots&) = delete;

  // One slot, or none if it was not free in time. Must not outlive the slots.
  class Slot {
   public:
    // `deadline` is a steady time.
    Slot(CallSlots& slots, absl::Duration deadline) : slots_(slots), is_taken_(slots.Take(deadline)) {}
    ~Slot() {
      if (is_taken_) slots_.Return();
    }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

    bool is_taken() const { return is_taken_; }

   private:
    CallSlots& slots_;
    const bool is_taken_;
  };

 private:
  bool Take(absl::Duration deadline) {
    std::unique_lock lock(mutex_);
    const bool is_free =
        returned_.wait_for(lock, absl::ToChronoNanoseconds(deadline - base::SteadyNow()), [this] { return free_ > 0; });
    if (is_free) --free_;
    return is_free;
  }

  void Return() {
    const std::lock_guard lock(mutex_);
    ++free_;
    returned_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable returned_;
  int free_;  // guarded by mutex_
};

}  // namespace tessera::server
