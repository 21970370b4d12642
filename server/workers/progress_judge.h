// Decides from what the ranks of a group report whether they make progress, or hang. Pure: time is an argument.
//
// A rank reports two counters. Beats count operators of the tensor library: they are always progress. Effort is time
// that its processor or its device spent on work (parallel/segment/effort_meter.h); it is what a long operator shows,
// and what a rank that spins for ever shows too, so it counts only for so long as the predicted work can explain.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tessera::server {

struct RankProgress {
  uint64_t beats = 0;
  absl::Duration effort;
};

// Of the command that is being answered.
struct PauseBound {
  absl::Duration idle;       // how long no rank may show any progress
  absl::Duration predicted;  // what is predicted for one step, or for another piece of work that may be one operator
  bool is_step = false;      // ten times the longest pause of the steps so far is allowed, too

  bool operator==(const PauseBound&) const = default;
};

class ProgressJudge final {
 public:
  // How often the predicted time of work its effort counts as progress, since the last beat.
  static constexpr int kMostPredictions = 20;

  explicit ProgressJudge(size_t ranks) : last_(ranks) {}

  // `bound`: of the answer that is due; none: no answer is. How long there has been no progress, where that is too
  // long; none otherwise.
  std::optional<absl::Duration> Observe(absl::Duration now, absl::Span<const RankProgress> ranks,
                                        const std::optional<PauseBound>& bound);

 private:
  // Whether any rank has begun an operator since the last call.
  bool HasBeaten(absl::Span<const RankProgress> ranks);
  // Whether any rank worked for a part of the time since effort was last counted.
  bool HasWorked(absl::Duration now, absl::Span<const RankProgress> ranks) const;

  std::vector<RankProgress> last_;  // beats of the last call, effort when it was last counted
  absl::Duration beaten_at_;
  absl::Duration worked_at_;      // a beat, or effort
  absl::Duration longest_pause_;  // between two of these, in steps
  std::optional<PauseBound> last_bound_;
};

}  // namespace tessera::server
