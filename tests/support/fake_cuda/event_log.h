// What a process asked of the fake CUDA, one line an event: microseconds since the start, number of the thread, the
// event, its fields. Tests read it with fake_cuda_log.h, which documents the fields. Nothing is written where
// FAKE_CUDA_LOG is not set; otherwise to a file of that name, a dot and the process's id.
#pragma once

#include <charconv>
#include <chrono>
#include <concepts>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>

namespace tessera::fake_cuda {

// May be used by several threads. An event costs some 100 ns, so that the time between events is the program's.
class EventLog final {
 public:
  EventLog();

  // A line of the event and its fields, which are texts and integers.
  template <class... Fields>
  void Write(std::string_view event, const Fields&... fields) {
    if (file_ == nullptr) return;
    const std::lock_guard lock(mutex_);
    Begin();
    Append(event);
    (AppendField(fields), ...);
    line_ += '\n';
    if (line_.size() >= kBuffer) WriteOut();
  }

  // What was written so far is in the file. Called where a process may be about to be killed: at every wait.
  void Flush();

 private:
  static constexpr size_t kBuffer = 1 << 20;

  void Begin();
  void WriteOut();
  void Append(std::string_view text) { line_ += text; }
  void Append(std::integral auto number) {
    char digits[24];
    line_.append(digits, std::to_chars(digits, digits + sizeof(digits), number).ptr);
  }
  void AppendField(const auto& field) {
    line_ += ' ';
    Append(field);
  }

  std::mutex mutex_;
  std::FILE* file_ = nullptr;
  std::string line_;  // and those before it that are not in the file yet
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace tessera::fake_cuda
