#include "server/trace/queue_trace.h"

#include <algorithm>

namespace tessera::server {

void QueueTrace::BeginWaiting(const TracedImage& image, absl::Time since) {
  if (waiting_.insert({image.job, image.index}).second) trace_->Begin(image, "queued", since);
}

void QueueTrace::EndWaiting(const TracedImage& image) {
  if (waiting_.erase({image.job, image.index}) > 0) trace_->End(image, "queued", trace_->Now());
}

void QueueTrace::OnQueued(const TracedImage& image, absl::Time created) {
  if (trace_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  const absl::Time since = std::min(created, trace_->Now());  // the calendar may have been set since
  trace_->Begin(image, "image", since);
  BeginWaiting(image, since);
}

void QueueTrace::OnClaimed(const TracedImage& image) {
  if (trace_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  EndWaiting(image);
}

void QueueTrace::OnQueuedAgain(const TracedImage& image) {
  if (trace_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  BeginWaiting(image, trace_->Now());
}

void QueueTrace::OnImageEncoded(const TracedImage& image, absl::Time begun, absl::Time encoded) {
  if (trace_ == nullptr) return;
  trace_->Stage(image, {.name = "image encode", .start = begun, .end = encoded});
  trace_->Stage(image, {.name = "store", .start = encoded, .end = trace_->Now()});
}

void QueueTrace::OnForgotten(const TracedImage& image, const std::string& outcome) {
  if (trace_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  EndWaiting(image);
  trace_->End(image, "image", trace_->Now(), {{"outcome", outcome}});
}

}  // namespace tessera::server
