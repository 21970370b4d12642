// StreamWriter writes the messages of one gRPC stream on a thread, so that no caller waits for the network.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/threads/start_thread.h"

namespace tessera::server {

// `Stream` has Write(message), which only this object may call; it outlives this. Thread-safe.
template <typename Stream, typename Message>
class StreamWriter final {
 public:
  // The queue is bounded by the messages that ranks may have in flight; a stream that takes nothing is cancelled by
  // `overflow`.
  static constexpr size_t kMostQueued = size_t{512} << 20;

  StreamWriter(Stream& stream, std::function<void()> overflow)
      : stream_(stream), overflow_(std::move(overflow)), thread_(base::StartThread([this] { Run(); })) {}
  // Unless the stream has ended or was cancelled, queued messages are written first.
  ~StreamWriter() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  void Push(Message message) {
    bool overflown = false;
    {
      const std::lock_guard lock(mutex_);
      if (failed_) return;
      queued_ += message.ByteSizeLong();
      queue_.push_back(std::move(message));
      overflown = queued_ > kMostQueued;
      changed_.notify_all();
    }
    if (overflown) overflow_();
  }

 private:
  void Run() {
    while (true) {
      Message message;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
        if (queue_.empty()) return;
        message = std::move(queue_.front());
        queue_.pop_front();
        queued_ -= message.ByteSizeLong();
      }
      if (stream_.Write(message)) continue;
      const std::lock_guard lock(mutex_);
      failed_ = true;
      queue_.clear();
      queued_ = 0;
    }
  }

  Stream& stream_;
  const std::function<void()> overflow_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<Message> queue_;
  size_t queued_ = 0;  // bytes
  bool ending_ = false, failed_ = false;
  std::thread thread_;
};

}  // namespace tessera::server
