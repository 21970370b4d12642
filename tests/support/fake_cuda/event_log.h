// What a process asked of the fake CUDA, one line an event: microseconds since the start, number of the thread, the
// event, its fields. Tests read it with fake_cuda_log.h, which documents the fields. Nothing is written where
// FAKE_CUDA_LOG is not set; otherwise to a file of that name, a dot and the process's id.
#pragma once

#include <chrono>
#include <cstdio>
#include <mutex>

namespace tessera::fake_cuda {

// May be used by several threads.
class EventLog final {
 public:
  EventLog();

  // A line of `format`, as printf.
  void Write(const char* format, ...) __attribute__((format(printf, 2, 3)));
  // What was written so far is in the file. Called where a process may be about to be killed: at every wait.
  void Flush();

 private:
  std::mutex mutex_;
  std::FILE* file_ = nullptr;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace tessera::fake_cuda
