// SilenceWatch calls a function at every beat, and another when the other side of a stream has been silent for too
// long.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "base/threads/start_thread.h"
#include "base/time/steady_time.h"
#include "base/time/watched_time.h"

namespace tessera::server {

// A thread of the watch calls both functions. Heard and is_silent are thread-safe. What arrived while this process
// stood still is heard before the other side counts as silent.
class SilenceWatch final {
 public:
  SilenceWatch(absl::Duration beat, absl::Duration lost_after, std::function<void()> on_beat,
               std::function<void()> on_silence)
      : beat_(beat),
        lost_after_(lost_after),
        on_beat_(std::move(on_beat)),
        on_silence_(std::move(on_silence)),
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

  void Heard() { heard_ = true; }
  bool is_silent() const { return silent_; }

 private:
  void Run() {
    base::WatchedTime time(2 * beat_);
    absl::Duration heard_at = time.LookAt(base::SteadyNow());
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, absl::ToChronoMilliseconds(beat_), [this] { return ending_; })) {
      lock.unlock();
      on_beat_();
      const absl::Duration now = time.LookAt(base::SteadyNow());
      if (heard_.exchange(false)) heard_at = now;
      if (!silent_ && now - heard_at > lost_after_) {
        silent_ = true;
        on_silence_();
      }
      lock.lock();
    }
  }

  const absl::Duration beat_, lost_after_;
  const std::function<void()> on_beat_, on_silence_;
  std::atomic<bool> heard_ = false;  // since the last look
  std::atomic<bool> silent_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace tessera::server
