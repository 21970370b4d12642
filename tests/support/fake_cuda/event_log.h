// Records the calls of a process to the fake CUDA, one event per line: microseconds since the start, thread number,
// event, fields. Tests read the log with fake_cuda_log.h, which documents the fields. Without FAKE_CUDA_LOG nothing is
// written; otherwise the file's name is the variable's value, a dot and the process id.
#pragma once

#include <charconv>
#include <chrono>
#include <concepts>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>

namespace tessera::fake_cuda {

// Thread-safe. An event costs about 100 ns, so the time between events is essentially that of the program.
class EventLog final {
 public:
  EventLog();

  // Writes a line with the event and its fields, which are strings and integers.
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

  // Writes buffered events to the file, and the process's peak of main memory if it has grown. Called at every wait,
  // because the process may be killed there.
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
  long most_resident_ = 0;  // KiB of main memory
  std::string line_;        // the current line and earlier ones not yet in the file
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace tessera::fake_cuda
