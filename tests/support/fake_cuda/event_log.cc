#include "tests/support/fake_cuda/event_log.h"

#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdlib>
#include <string>

namespace tessera::fake_cuda {
namespace {

// Threads are numbered in the order of their first event.
int ThreadNumber() {
  static std::atomic<int> last = 0;
  thread_local const int number = ++last;
  return number;
}

}  // namespace

EventLog::EventLog() {
  const char* name = std::getenv("FAKE_CUDA_LOG");
  if (name == nullptr) return;
  file_ = std::fopen((std::string(name) + "." + std::to_string(getpid())).c_str(), "w");
  if (file_ == nullptr) return;
  constexpr size_t kBuffer = 1 << 20;
  std::setvbuf(file_, nullptr, _IOFBF, kBuffer);
}

void EventLog::Write(const char* format, ...) {
  if (file_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto time = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start_);
  std::fprintf(file_, "%lld %d ", static_cast<long long>(time.count()), ThreadNumber());
  va_list fields;
  va_start(fields, format);
  std::vfprintf(file_, format, fields);
  va_end(fields);
  std::fputc('\n', file_);
}

void EventLog::Flush() {
  if (file_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  std::fflush(file_);
}

}  // namespace tessera::fake_cuda
