#include "base/log/log_writer.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/threads/start_thread.h"

namespace tessera::base {
namespace {

bool WriteAll(int descriptor, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {  // another process that shares the file has made it non-blocking
      pollfd writable = {descriptor, POLLOUT, 0};
      poll(&writable, 1, -1);
    } else if (written == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

std::string DropReport(int64_t lines) {
  LogLine line(LogLevel::kWarning,
               absl::StrCat(lines, " log lines were dropped here: standard error did not accept them"),
               {{"lines", lines}});
  line.event = "log_lines_dropped";
  return LogText(line, absl::Now()) + "\n";
}

}  // namespace

struct LogWriter::State {
  explicit State(const LogWriterOptions& options) : options(options) {}

  const LogWriterOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex.
  std::deque<std::string> queue;
  size_t bytes = 0;  // of the queue and of the line being written
  int64_t dropped = 0, reported = 0;
  bool writing = false, ended = false;
};

LogWriter::LogWriter(const LogWriterOptions& options) : state_(std::make_shared<State>(options)) {
  // Blocks all signals on the new thread; a pipe without a reader is then an error of write().
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  StartThread([state = state_] { Run(state); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

LogWriter::~LogWriter() {
  const std::lock_guard lock(state_->mutex);
  state_->ended = true;
  state_->changed.notify_all();
}

void LogWriter::Run(const std::shared_ptr<State>& state) {
  int64_t missing = 0;  // lines whose report the descriptor also refused
  std::unique_lock lock(state->mutex);
  while (true) {
    state->changed.wait(lock,
                        [&] { return !state->queue.empty() || state->reported < state->dropped || state->ended; });
    std::string text;
    const bool is_line = !state->queue.empty();
    const int64_t unreported = state->dropped - state->reported;
    if (is_line) {
      text = std::move(state->queue.front());
      state->queue.pop_front();
    } else if (unreported == 0) {
      return;
    }
    const size_t line_bytes = text.size();
    if (!is_line) missing += unreported;
    if (missing > 0) text.insert(0, DropReport(missing));
    state->writing = true;
    lock.unlock();
    const bool written = WriteAll(state->options.descriptor, text);
    if (written) missing = 0;
    lock.lock();
    state->writing = false;
    state->bytes -= line_bytes;
    if (!is_line) state->reported += unreported;
    if (is_line && !written) ++state->dropped;
    state->changed.notify_all();
  }
}

void LogWriter::Write(const LogLine& line) { WriteText(LogText(line, absl::Now()) + "\n"); }

void LogWriter::WriteText(std::string text) {
  const std::lock_guard lock(state_->mutex);
  if (state_->reported < state_->dropped || state_->bytes + text.size() > state_->options.queue_bytes) {
    ++state_->dropped;
    state_->changed.notify_all();
    return;
  }
  state_->bytes += text.size();
  state_->queue.push_back(std::move(text));
  state_->changed.notify_all();
}

bool LogWriter::Flush(absl::Duration timeout) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, absl::ToChronoNanoseconds(timeout), [this] {
    return state_->queue.empty() && !state_->writing && state_->reported == state_->dropped;
  });
}

int64_t LogWriter::dropped() const {
  const std::lock_guard lock(state_->mutex);
  return state_->dropped;
}

EventLog LogTo(std::shared_ptr<LogWriter> writer, LogLevel least) {
  return [writer = std::move(writer), least](const LogLine& line) {
    if (line.level >= least) writer->Write(line);
  };
}

}  // namespace tessera::base
