#include "runtime/denoising/position_tables.h"

#include <algorithm>

namespace tessera::runtime {

models::Positions PositionTables::Of(models::TokenGrid grid, int64_t text) {
  const auto found =
      std::ranges::find_if(kept_, [&](const Entry& entry) { return entry.grid == grid && entry.text == text; });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
  } else {
    kept_.push_front({.grid = grid, .text = text, .positions = transformer_.Place(grid, text, device_)});
    if (kept_.size() > kSizes) kept_.pop_back();
  }
  return kept_.front().positions;
}

}  // namespace tessera::runtime
