// Runs a case on every rank of a layout. Ranks are threads of this process.
#pragma once

#include <functional>
#include <vector>

#include "models/loading/param_table.h"
#include "parallel/rank_groups.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::golden {

// The communicators of one rank, and its share of the model.
struct RankPlace {
  const parallel::RankGroups& groups;
  models::WeightShare share;      // of a transformer with the given number of blocks
  std::vector<int> stage_bounds;  // of the pipeline stages
};

// Runs `run` on every rank and combines the reports. An error on any rank is the result. Returns Unimplemented, with
// the reason, if the layout is not valid for a transformer of that many heads and blocks, or is not lossless.
absl::StatusOr<Report> RunOnRanks(const parallel::Layout& layout, int64_t heads, int64_t blocks,
                                  const std::function<absl::StatusOr<Report>(const RankPlace&)>& run);

}  // namespace tessera::golden
