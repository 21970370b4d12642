#include "base/threads/task_pool.h"

#include <utility>

#include "base/threads/start_thread.h"

namespace tessera::base {

TaskPool::TaskPool(int threads, const std::function<void()>& begin) {
  for (int i = 0; i < threads; ++i) {
    threads_.push_back(StartThread([this, begin] {
      begin();
      Work();
    }));
  }
}

TaskPool::~TaskPool() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void TaskPool::Post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void TaskPool::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !tasks_.empty() || (ending_ && busy_ == 0); });
    if (tasks_.empty()) break;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    ++busy_;
    lock.unlock();
    task();
    task = nullptr;  // releases its captures, whose destructors may post
    lock.lock();
    --busy_;
  }
  changed_.notify_all();
}

}  // namespace tessera::base
