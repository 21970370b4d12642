#include "runtime/denoising/position_tables.h"

#include <algorithm>

namespace tessera::runtime {

models::Positions PositionTables::Of(models::TokenGrid grid) {
  const auto found = std::ranges::find(kept_, grid, [](const auto& entry) { return entry.first; });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
  } else {
    kept_.emplace_front(grid, transformer_.Place(grid, device_));
    if (kept_.size() > kSizes) kept_.pop_back();
  }
  return kept_.front().second;
}

}  // namespace tessera::runtime
