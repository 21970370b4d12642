#include "tests/support/fake_cuda/event_log.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

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
  line_.reserve(kBuffer + 4096);
  static EventLog* log = this;  // the only one of the process
  std::atexit([] { log->Flush(); });
  std::at_quick_exit([] { log->Flush(); });
}

void EventLog::Begin() {
  const auto time = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start_);
  Append(time.count());
  AppendField(ThreadNumber());
  line_ += ' ';
}

void EventLog::WriteOut() {
  std::fwrite(line_.data(), 1, line_.size(), file_);
  std::fflush(file_);
  line_.clear();
}

void EventLog::Flush() {
  if (file_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  if (usage.ru_maxrss > most_resident_) {
    most_resident_ = usage.ru_maxrss;
    Begin();
    Append("resident");
    AppendField(int64_t{most_resident_} * 1024);
    line_ += '\n';
  }
  WriteOut();
}

}  // namespace tessera::fake_cuda
