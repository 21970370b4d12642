// QueueTrace writes to a trace what happens to the images of jobs outside the groups. Thread-safe. Does nothing without
// a trace.
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
  // `trace` outlives the object; null: nothing is traced.
  explicit QueueTrace(TraceFile* trace) : trace_(trace) {}

  absl::Time Now() const { return trace_ == nullptr ? absl::InfinitePast() : trace_->Now(); }

  // An image has been waiting in the queue since it was created.
  void OnQueued(const TracedImage& image, absl::Time created);
  void OnClaimed(const TracedImage& image);
  void OnQueuedAgain(const TracedImage& image);
  // Its file was made and has just been stored.
  void OnImageEncoded(const TracedImage& image, absl::Time begun, absl::Time encoded);
  // Ends the image's track.
  void OnForgotten(const TracedImage& image, const std::string& outcome);

 private:
  using Key = std::pair<std::string, int32_t>;

  void BeginWaiting(const TracedImage& image, absl::Time since);  // requires mutex_, like the next one
  void EndWaiting(const TracedImage& image);

  TraceFile* const trace_;
  std::mutex mutex_;
  std::set<Key> waiting_;
};

}  // namespace tessera::server
