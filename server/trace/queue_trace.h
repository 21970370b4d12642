// What becomes of the images of jobs outside the groups, told to a trace. Thread-safe. Without a trace, nothing.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "server/trace/trace_file.h"

namespace tessera::server {

class QueueTrace {
 public:
  // `trace` outlives it; null: nothing is traced.
  explicit QueueTrace(TraceFile* trace) : trace_(trace) {}

  absl::Time Now() const { return trace_ == nullptr ? absl::InfinitePast() : trace_->Now(); }

  // An image waits in the queue since it was created.
  void OnQueued(const TracedImage& image, absl::Time created);
  void OnClaimed(const TracedImage& image);
  void OnQueuedAgain(const TracedImage& image);
  // Its file was made and, just now, stored.
  void OnImageEncoded(const TracedImage& image, absl::Time begun, absl::Time encoded);
  // The end of its track.
  void OnForgotten(const TracedImage& image, const std::string& outcome);

 private:
  using Key = std::pair<std::string, int32_t>;

  void BeginWaiting(const TracedImage& image, absl::Time since);  // under mutex_, as the next one is
  void EndWaiting(const TracedImage& image);

  TraceFile* const trace_;
  std::mutex mutex_;
  std::set<Key> waiting_;
};

}  // namespace tessera::server
