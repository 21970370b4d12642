// The 1F1B schedule of pipeline training (Narayanan et al., "PipeDream", 2019; Fan et al., "DAPPLE", 2021) as data:
// which micro-batches a stage takes forwards and backwards, and in which order. Pure.
//
// Stage s of n takes n − s − 1 micro-batches forwards, then one forwards and one backwards in turns, and at the end
// backwards what is left. So it never holds the activations of more than n − s micro-batches, however many a step has,
// where all forwards before all backwards would hold those of all.
//
// Between two passes a stage exchanges at once what the one made and what the other begins with: a state goes to the
// next stage, its gradient to the one before. So both sides list the messages of each direction in the same order, and
// nothing deadlocks even if each send waits for its receiver.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::parallel {

struct StagePass {
  enum class Direction : uint8_t { kForward, kBackward };

  Direction direction = Direction::kForward;
  int micro_batch = 0;

  bool operator==(const StagePass&) const = default;
};

// The passes of one optimizer step on that stage, 0 ≤ stage < stages. Both directions take the micro-batches in their
// order.
std::vector<StagePass> OneForwardOneBackward(int stage, int stages, int micro_batches);

}  // namespace tessera::parallel
