// LogWriter writes lines to a file descriptor on a thread, so that a stalled reader never blocks the thread that logs.
//
// Lines wait in a bounded queue. A line that does not fit is dropped and counted; so is every later one until the queue
// has been written, when one line reports how many are missing at that place. Thread-safe. The thread holds the state
// that it needs and is not joined: it may be blocked in write() for as long as the reader stalls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/log_line.h"

namespace tessera::base {

struct LogWriterOptions {
  int descriptor = 2;  // stays open for as long as the process
  size_t queue_bytes = size_t{1} << 20;
};

class LogWriter final {
 public:
  explicit LogWriter(const LogWriterOptions& options);
  ~LogWriter();  // what is queued is still written, while the process lasts

  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // One line of JSON with the present time. Never blocks.
  void Write(const LogLine& line);
  // `text` with its ends of lines. Never blocks.
  void WriteText(std::string text);

  // Waits until everything queued has been written, `timeout` at most: whether it has.
  bool Flush(absl::Duration timeout);

  // Since the start: lines that did not fit into the queue, or that the descriptor refused.
  int64_t dropped() const;

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

// A log that writes the lines of at least this level to `writer`, which it keeps alive.
EventLog LogTo(std::shared_ptr<LogWriter> writer, LogLevel least);

}  // namespace tessera::base
