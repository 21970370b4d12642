#include "server/trace/queue_trace.h"

#include <algorithm>

namespace tessera::server {

bool QueueTrace::IsOff(const TracedImage& image) const {
  return trace_ == nullptr && (spans_ == nullptr || !spans_->IsRecorded(image));
}

void QueueTrace::BeginWaiting(const TracedImage& image, absl::Time since) {
  const bool begins = waiting_.insert({{image.job, image.index}, since}).second;
  if (begins && trace_ != nullptr) trace_->Begin(image, "queued", since);
}

absl::Time QueueTrace::EndWaiting(const TracedImage& image) {
  const auto waiting = waiting_.find({image.job, image.index});
  if (waiting == waiting_.end()) return absl::InfiniteFuture();
  const absl::Time since = waiting->second;
  waiting_.erase(waiting);
  if (trace_ != nullptr) trace_->End(image, "queued", trace_->Now());
  return since;
}

void QueueTrace::ExportWaiting(const TracedImage& image, absl::Time since) const {
  if (spans_ == nullptr || since == absl::InfiniteFuture()) return;
  spans_->AddStage(image, {.name = "queued", .start = since, .end = Now()});
}

void QueueTrace::OnQueued(const TracedImage& image, absl::Time created) {
  if (IsOff(image)) return;
  const std::lock_guard lock(mutex_);
  const absl::Time since = std::min(created, Now());  // the calendar may have been set since
  if (trace_ != nullptr) trace_->Begin(image, "image", since);
  BeginWaiting(image, since);
}

void QueueTrace::OnClaimed(const TracedImage& image) {
  if (IsOff(image)) return;
  const std::lock_guard lock(mutex_);
  ExportWaiting(image, EndWaiting(image));
}

void QueueTrace::OnQueuedAgain(const TracedImage& image) {
  if (IsOff(image)) return;
  const std::lock_guard lock(mutex_);
  BeginWaiting(image, Now());
}

void QueueTrace::OnImageEncoded(const TracedImage& image, absl::Time begun, absl::Time encoded) {
  if (IsOff(image)) return;
  const absl::Time now = Now();
  if (trace_ != nullptr) {
    trace_->Stage(image, {.name = "image encode", .start = begun, .end = encoded});
    trace_->Stage(image, {.name = "store", .start = encoded, .end = now});
  }
  if (spans_ == nullptr) return;
  spans_->AddStage(image, {.name = "image encode", .start = begun, .end = encoded});
  spans_->AddStage(image, {.name = "store", .start = encoded, .end = now});
}

void QueueTrace::OnEnded(const TracedImage& image, const ImageFacts& facts, const std::string& outcome) {
  if (spans_ == nullptr || IsOff(image)) return;
  const std::lock_guard lock(mutex_);
  const auto waiting = waiting_.find({image.job, image.index});
  if (waiting != waiting_.end()) ExportWaiting(image, waiting->second);
  spans_->AddImage(image, facts, outcome);
}

void QueueTrace::OnForgotten(const TracedImage& image, const std::string& outcome) {
  if (IsOff(image)) return;
  const std::lock_guard lock(mutex_);
  EndWaiting(image);
  if (trace_ != nullptr) trace_->End(image, "image", trace_->Now(), {{"outcome", outcome}});
}

}  // namespace tessera::server
