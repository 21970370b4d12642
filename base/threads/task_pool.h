// TaskPool runs tasks that may wait for the disk on a few threads.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera::base {

class TaskPool {
 public:
  // Each thread calls `begin` first.
  explicit TaskPool(
      int threads, const std::function<void()>& begin = [] {});
  ~TaskPool();  // runs all posted tasks first, including those that these tasks post

  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  void Post(std::function<void()> task);  // from any thread

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  size_t busy_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::base
