// Decides from the progress reports of a group's ranks whether they make progress or hang. Pure: time is an argument.
//
// A rank reports two counters. Beats count operators of the tensor library and always mean progress. Effort is the time
// that its processor or its device spent on work (parallel/segment/effort_meter.h). A long operator shows only effort,
// but so does a rank in an endless loop; effort therefore counts as progress only for as long as the predicted work
// explains it.
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

// The longest pause that the pending command allows.
struct PauseBound {
  absl::Duration idle;       // longest time without progress on any rank
  absl::Duration predicted;  // predicted duration of one step, or of other work that may be a single operator
  bool is_step = false;      // also allow ten times the longest pause of all steps so far

  bool operator==(const PauseBound&) const = default;
};

class ProgressJudge final {
 public:
  // Since the last beat, effort counts as progress for this multiple of the predicted time.
  static constexpr int kMostPredictions = 20;

  explicit ProgressJudge(size_t ranks) : last_(ranks) {}

  // `bound` is that of the pending command; nullopt if no reply is pending. Returns the time without progress if it
  // exceeds the bound, else nullopt.
  std::optional<absl::Duration> Observe(absl::Duration now, absl::Span<const RankProgress> ranks,
                                        const std::optional<PauseBound>& bound);

 private:
  // True if any rank has begun an operator since the last call.
  bool HasBeaten(absl::Span<const RankProgress> ranks);
  // True if any rank was busy for a sufficient share of the time since effort was last counted.
  bool HasWorked(absl::Duration now, absl::Span<const RankProgress> ranks) const;

  std::vector<RankProgress> last_;  // beats at the last call; effort when it last counted
  absl::Duration beaten_at_;
  absl::Duration worked_at_;      // the last beat or counted effort
  absl::Duration longest_pause_;  // between two such times, both within steps
  std::optional<PauseBound> last_bound_;
};

}  // namespace tessera::server
