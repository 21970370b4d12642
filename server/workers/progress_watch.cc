#include "server/workers/progress_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/threads/start_thread.h"
#include "base/time/steady_time.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kWatchInterval = absl::Milliseconds(50);
// A process may be stopped briefly, for example by a debugger.
constexpr absl::Duration kStoppedTimeout = absl::Seconds(1);
// Progress during a longer gap between two looks is seen only after it.
constexpr absl::Duration kLongestGap = absl::Milliseconds(500);

}  // namespace

ProgressWatch::ProgressWatch(std::vector<Rank> ranks, const parallel::HostSegment& segment, Events events)
    : ranks_(std::move(ranks)),
      segment_(segment),
      events_(std::move(events)),
      time_(kLongestGap),
      judge_(ranks_.size()),
      progress_(ranks_.size()),
      thread_(base::StartThread([this] { Watch(); })) {}

ProgressWatch::~ProgressWatch() {
  ending_ = true;
  thread_.join();
}

void ProgressWatch::Watch() {
  while (!ending_) {
    const absl::Duration now = time_.LookAt(base::SteadyNow());
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].process->WaitForExit(absl::ZeroDuration()) && !ending_) events_.ended(static_cast<int>(rank));
    }
    CheckProgress(now);
    absl::SleepFor(kWatchInterval);
  }
}

void ProgressWatch::SetBound(const std::optional<PauseBound>& bound) {
  const std::lock_guard lock(mutex_);
  bound_ = bound;
}

void ProgressWatch::CheckProgress(absl::Duration now) {
  std::optional<PauseBound> bound;
  {
    const std::lock_guard lock(mutex_);
    bound = bound_;
  }
  bool stopped = false;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto number = static_cast<int>(rank);
    const RankProgress last = std::exchange(
        progress_[rank],
        {.beats = segment_.Beats(number).load(std::memory_order_relaxed),
         .effort = absl::Nanoseconds(static_cast<int64_t>(segment_.Effort(number).load(std::memory_order_relaxed)))});
    // IsStopped costs as much as a small operator.
    stopped =
        stopped || (bound.has_value() && last.beats == progress_[rank].beats && ranks_[rank].process->IsStopped());
  }
  if (!stopped) stopped_since_ = now;
  std::optional<absl::Duration> pause = judge_.Observe(now, progress_, bound);
  if (stopped && now - stopped_since_ >= kStoppedTimeout)
    pause = std::max(pause.value_or(absl::ZeroDuration()), now - stopped_since_);
  if (!pause.has_value()) return;
  events_.hangs(absl::StrCat(Culprit(), ": no rank has made progress for ",
                             absl::FormatDuration(absl::Trunc(*pause, absl::Milliseconds(100)))));
}

// Names the ranks that keep the others waiting.
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
  return "all ranks wait for each other";
}

}  // namespace tessera::server
