#include "parallel/plan/one_forward_one_backward.h"

#include <algorithm>

#include "base/macros/planted.h"

namespace tessera::parallel {

std::vector<StagePass> OneForwardOneBackward(int stage, int stages, int micro_batches) {
  using Direction = StagePass::Direction;
  const int warmup = base::Planted("all_forwards_first") ? micro_batches : std::min(stages - stage - 1, micro_batches);
  std::vector<StagePass> passes;
  for (int i = 0; i < warmup; ++i) passes.push_back({Direction::kForward, i});
  for (int i = warmup; i < micro_batches; ++i) {
    passes.push_back({Direction::kForward, i});
    passes.push_back({Direction::kBackward, i - warmup});
  }
  for (int i = micro_batches - warmup; i < micro_batches; ++i) passes.push_back({Direction::kBackward, i});
  return passes;
}

}  // namespace tessera::parallel
