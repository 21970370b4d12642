// LogWriter writes lines to a file descriptor on a thread, so that a stalled reader never blocks the thread that logs.
//
// Lines wait in a bounded queue. A line that does not fit is dropped and counted, as is every later one until the queue
// has been written; then one line reports how many are missing at that place. Thread-safe. The thread owns the state
// that it needs and is not joined, because it may be blocked in write() for as long as the reader stalls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/log/log_line.h"

namespace tessera::base {

struct LogWriterOptions {
  int descriptor = 2;  // must remain open for the life of the process
  size_t queue_bytes = size_t{1} << 20;
};

class LogWriter final {
 public:
  explicit LogWriter(const LogWriterOptions& options);
  ~LogWriter();  // queued lines are still written while the process runs

  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Writes one line of JSON with the current time. Never blocks.
  void Write(const LogLine& line);
  // Writes `text`, which contains its newlines. Never blocks.
  void WriteText(std::string text);

  // Waits at most `timeout` until everything queued has been written. Returns whether it has.
  bool Flush(absl::Duration timeout);

  // Number of lines since the start that did not fit into the queue or that the descriptor refused.
  int64_t dropped() const;

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

// Returns a log that writes lines of at least this level to `writer`, and shares ownership of it.
EventLog LogTo(std::shared_ptr<LogWriter> writer, LogLevel least);

}  // namespace tessera::base
