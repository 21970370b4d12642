#include "server/workers/progress_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/steady_time.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kWatchInterval = absl::Milliseconds(50);
// Somebody may stop a process for a moment, a debugger for example.
constexpr absl::Duration kStoppedTimeout = absl::Seconds(1);
constexpr int kPausesInAStep = 10;

}  // namespace

ProgressWatch::ProgressWatch(std::vector<Rank> ranks, const parallel::HostSegment& segment, absl::Duration step_bound,
                             Events events)
    : ranks_(std::move(ranks)),
      segment_(segment),
      step_bound_(step_bound),
      events_(std::move(events)),
      beats_(ranks_.size()),
      thread_([this] { Watch(); }) {}

ProgressWatch::~ProgressWatch() {
  ending_ = true;
  thread_.join();
}

void ProgressWatch::Watch() {
  while (!ending_) {
    const absl::Duration now = base::SteadyNow();
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].process->WaitForExit(absl::ZeroDuration()) && !ending_) events_.ended(static_cast<int>(rank));
    }
    CheckProgress(now);
    absl::SleepFor(kWatchInterval);
  }
}

void ProgressWatch::CheckProgress(absl::Duration now) {
  const int64_t bound = bound_nanoseconds_;
  bool beaten = false, stopped = false;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const uint64_t beats = segment_.Beats(static_cast<int>(rank));
    const bool beats_on = std::exchange(beats_[rank], beats) != beats;
    beaten = beaten || beats_on;
    // To ask costs as much as a small operator.
    stopped = stopped || (bound != 0 && !beats_on && ranks_[rank].process->IsStopped());
  }
  if (bound == 0 || last_bound_ == 0 || beaten) {
    if (bound != 0 && last_bound_ == bound && bound == absl::ToInt64Nanoseconds(step_bound_)) {
      longest_pause_ = std::max(longest_pause_, now - progress_at_);
    }
    progress_at_ = now;
  }
  last_bound_ = bound;
  if (bound == 0 || !stopped) stopped_since_ = now;
  if (bound == 0) return;
  absl::Duration limit = absl::Nanoseconds(bound);
  if (limit == step_bound_) limit = std::max(limit, kPausesInAStep * longest_pause_);
  if (now - stopped_since_ < kStoppedTimeout && now - progress_at_ < limit) return;
  const absl::Duration pause = absl::Trunc(now - progress_at_, absl::Milliseconds(100));
  events_.hangs(absl::StrCat(Culprit(), ": no rank has got on for ", absl::FormatDuration(pause)));
}

// Who keeps the others waiting.
std::string ProgressWatch::Culprit() const {
  std::vector<std::string> stopped, busy;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].process->IsStopped()) {
      stopped.push_back(absl::StrCat(ranks_[rank].name, " was stopped by a signal"));
    } else if (!segment_.IsInCall(static_cast<int>(rank))) {
      busy.push_back(absl::StrCat(ranks_[rank].name, " hangs"));
    }
  }
  if (!stopped.empty()) return absl::StrJoin(stopped, ", ");
  if (!busy.empty()) return absl::StrJoin(busy, ", ");
  return "every rank waits for another one";
}

}  // namespace tessera::server
