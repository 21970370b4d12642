// QueueTrace writes to a trace, and exports as spans, what happens to the images of jobs outside the groups.
// Thread-safe. Does nothing without both.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "server/trace/image_spans.h"
#include "server/trace/trace_file.h"

namespace tessera::server {

class QueueTrace {
 public:
  // Both outlive the object and may be null.
  explicit QueueTrace(TraceFile* trace, const ImageSpans* spans = nullptr) : trace_(trace), spans_(spans) {}

  absl::Time Now() const {
    if (trace_ != nullptr) return trace_->Now();
    return spans_ == nullptr ? absl::InfinitePast() : spans_->Now();
  }
  bool exports_spans() const { return spans_ != nullptr; }

  // An image has been waiting in the queue since it was created.
  void OnQueued(const TracedImage& image, absl::Time created);
  void OnClaimed(const TracedImage& image);
  void OnQueuedAgain(const TracedImage& image);
  // Its file was made and has just been stored.
  void OnImageEncoded(const TracedImage& image, absl::Time begun, absl::Time encoded);
  // Ends the image's track.
  void OnForgotten(const TracedImage& image, const std::string& outcome);
  // Exports the image's span, before OnForgotten.
  void OnEnded(const TracedImage& image, const ImageFacts& facts, const std::string& outcome);

 private:
  using Key = std::pair<std::string, int32_t>;

  bool IsOff(const TracedImage& image) const;
  void BeginWaiting(const TracedImage& image, absl::Time since);  // requires mutex_, like the next one
  // Returns since when it has waited; InfiniteFuture: it does not wait.
  absl::Time EndWaiting(const TracedImage& image);
  void ExportWaiting(const TracedImage& image, absl::Time since) const;

  TraceFile* const trace_;
  const ImageSpans* const spans_;
  std::mutex mutex_;
  std::map<Key, absl::Time> waiting_;  // since when; guarded by mutex_
};

}  // namespace tessera::server
