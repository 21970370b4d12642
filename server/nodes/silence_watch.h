// SilenceWatch calls a function at every beat, and another when the other side of a stream has been silent for too
// long.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "base/threads/start_thread.h"
#include "base/time/steady_time.h"

namespace tessera::server {

// A thread of the watch calls both functions. Heard and is_silent are thread-safe.
class SilenceWatch final {
 public:
  SilenceWatch(absl::Duration beat, absl::Duration lost_after, std::function<void()> on_beat,
               std::function<void()> on_silence)
      : beat_(beat),
        lost_after_(lost_after),
        on_beat_(std::move(on_beat)),
        on_silence_(std::move(on_silence)),
        heard_(Now()),
        thread_(base::StartThread([this] { Run(); })) {}
  ~SilenceWatch() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  SilenceWatch(const SilenceWatch&) = delete;
  SilenceWatch& operator=(const SilenceWatch&) = delete;

  void Heard() { heard_ = Now(); }
  bool is_silent() const { return silent_; }

 private:
  static int64_t Now() { return absl::ToInt64Nanoseconds(base::SteadyNow()); }

  void Run() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, absl::ToChronoMilliseconds(beat_), [this] { return ending_; })) {
      lock.unlock();
      on_beat_();
      if (!silent_ && absl::Nanoseconds(Now() - heard_) > lost_after_) {
        silent_ = true;
        on_silence_();
      }
      lock.lock();
    }
  }

  const absl::Duration beat_, lost_after_;
  const std::function<void()> on_beat_, on_silence_;
  std::atomic<int64_t> heard_;  // nanoseconds
  std::atomic<bool> silent_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace tessera::server
