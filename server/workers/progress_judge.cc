#include "server/workers/progress_judge.h"

#include <algorithm>

namespace tessera::server {
namespace {

constexpr int kPausesInAStep = 10;
// A waiting process also uses some processor time, for its timers and for measuring that time.
constexpr double kLeastShare = 0.02;
constexpr absl::Duration kLeastEffort = absl::Milliseconds(5);

}  // namespace

std::optional<absl::Duration> ProgressJudge::Observe(absl::Duration now, absl::Span<const RankProgress> ranks,
                                                     const std::optional<PauseBound>& bound) {
  const bool beaten = HasBeaten(ranks), begins = !bound.has_value() || !last_bound_.has_value();
  const bool worked = beaten || begins || HasWorked(now, ranks);
  if (worked) {
    // A pause counts as one within steps if both its ends are in steps.
    if (!begins && bound->is_step && last_bound_->is_step) {
      longest_pause_ = std::max(longest_pause_, now - worked_at_);
    }
    worked_at_ = now;
    for (size_t rank = 0; rank < ranks.size(); ++rank) last_[rank].effort = ranks[rank].effort;
  }
  if (beaten || begins) beaten_at_ = now;
  last_bound_ = bound;
  if (!bound.has_value()) return std::nullopt;
  absl::Duration idle = bound->idle;
  if (bound->is_step) idle = std::max(idle, kPausesInAStep * longest_pause_);
  if (now - worked_at_ >= idle) return now - worked_at_;
  if (now - beaten_at_ >= std::max(idle, kMostPredictions * bound->predicted)) return now - beaten_at_;
  return std::nullopt;
}

bool ProgressJudge::HasBeaten(absl::Span<const RankProgress> ranks) {
  bool beaten = false;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    beaten = beaten || ranks[rank].beats != last_[rank].beats;
    last_[rank].beats = ranks[rank].beats;
  }
  return beaten;
}

bool ProgressJudge::HasWorked(absl::Duration now, absl::Span<const RankProgress> ranks) const {
  const absl::Duration least = std::max(kLeastEffort, kLeastShare * (now - worked_at_));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].effort - last_[rank].effort >= least) return true;
  }
  return false;
}

}  // namespace tessera::server
