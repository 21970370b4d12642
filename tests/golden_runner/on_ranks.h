// Running a case on every rank of a layout, each rank a thread of this process.
#pragma once

#include <functional>
#include <vector>

#include "models/loading/param_table.h"
#include "parallel/rank_groups.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::golden {

// What one rank is given.
struct RankPlace {
  const parallel::RankGroups& groups;
  models::WeightShare share;      // of a transformer with the number of blocks that was told
  std::vector<int> stage_bounds;  // of its pipeline stages
};

// Unimplemented, with the reason, where the layout is not legal for a transformer of so many heads and blocks. Else the
// reports of all ranks in one; any rank's error is the case's.
absl::StatusOr<Report> RunOnRanks(const parallel::Layout& layout, int64_t heads, int64_t blocks,
                                  const std::function<absl::StatusOr<Report>(const RankPlace&)>& run);

}  // namespace tessera::golden
