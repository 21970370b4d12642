#include "server/api/job_event_pump.h"

#include <utility>
#include <variant>

namespace tessera::server {
namespace {

// Whether `later` makes `earlier` irrelevant to a client that has seen neither.
bool Supersedes(const JobEvent& later, const JobEvent& earlier) {
  if (later.index() != earlier.index()) return false;
  if (std::holds_alternative<QueuedEvent>(later)) return true;
  if (const auto* step = std::get_if<StepEvent>(&later)) return step->image == std::get<StepEvent>(earlier).image;
  const auto* preview = std::get_if<PreviewEvent>(&later);
  return preview != nullptr && preview->image == std::get<PreviewEvent>(earlier).image;
}

}  // namespace

JobEventPump::JobEventPump(base::TaskPool& pool, Sink sink)
    : pool_(pool), sink_(std::make_shared<Sink>(std::move(sink))) {}

absl::StatusOr<std::shared_ptr<JobEventPump>> JobEventPump::Start(ImageService& service, base::TaskPool& pool,
                                                                  const Caller& caller, const std::string& job,
                                                                  WatchedEvents events, Sink sink) {
  std::shared_ptr<JobEventPump> pump(new JobEventPump(pool, std::move(sink)));
  // The pump owns the watch, so the watch must not own the pump.
  absl::StatusOr<std::unique_ptr<JobWatch>> watch =
      service.Watch(caller, job, events, [weak = pump->weak_from_this()](const JobEvent& event) {
        if (const auto self = weak.lock()) self->Add(event);
      });
  if (!watch.ok()) {
    pump->Stop();
    return watch.status();
  }
  {
    const std::lock_guard lock(pump->mutex_);
    if (pump->sink_ != nullptr) {
      pump->watch_ = *std::move(watch);
      return pump;
    }
  }
  // The last event has already arrived; the watch ends here.
  return pump;
}

void JobEventPump::Add(const JobEvent& event) {
  const std::lock_guard lock(mutex_);
  if (sink_ == nullptr) return;
  for (size_t i = waiting_.size(); i-- > 0;) {
    // Keep the step before a preview: it gives the preview's step number.
    if (std::holds_alternative<StepEvent>(event) && std::holds_alternative<PreviewEvent>(waiting_[i])) break;
    if (Supersedes(event, waiting_[i])) waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
  }
  waiting_.push_back(event);
  if (delivering_) return;
  delivering_ = true;
  pool_.Post([self = shared_from_this()] { self->Deliver(); });
}

void JobEventPump::Deliver() {
  while (true) {
    JobEvent event;
    std::shared_ptr<Sink> sink;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty() || sink_ == nullptr) {
        delivering_ = false;
        return;
      }
      event = std::move(waiting_.front());
      waiting_.pop_front();
      sink = sink_;
    }
    (*sink)(event);
    if (IsLast(event)) return Stop();
  }
}

void JobEventPump::Stop() {
  std::unique_ptr<JobWatch> watch;
  std::shared_ptr<Sink> sink;
  {
    const std::lock_guard lock(mutex_);
    watch = std::move(watch_);
    sink = std::move(sink_);
    waiting_.clear();
  }
  // Release neither under the lock nor on the caller's thread: both may wait for a call that needs the lock.
  if (watch == nullptr && sink == nullptr) return;
  pool_.Post([watch = std::shared_ptr<JobWatch>(std::move(watch)), sink = std::move(sink)] {});
}

}  // namespace tessera::server
