// The 1F1B schedule of pipeline training (Narayanan et al., "PipeDream", 2019; Fan et al., "DAPPLE", 2021) as data: the
// forward and backward passes of a stage's micro-batches and their order. Pure.
//
// Stage s of n runs n − s − 1 forward passes, then forward and backward passes alternately, and finally the remaining
// backward passes. So it never holds the activations of more than n − s micro-batches, however many a step has; running
// all forward passes first would hold those of all micro-batches.
//
// Between two passes a stage exchanges, at once, the output of the previous pass and the input of the next one: a state
// is sent to the next stage, its gradient to the previous stage. So both sides list the messages of each direction in
// the same order, and there is no deadlock even if each send waits for its receiver.
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

// Returns the passes of one optimizer step on `stage`, 0 ≤ stage < stages. Both directions process the micro-batches in
// order.
std::vector<StagePass> OneForwardOneBackward(int stage, int stages, int micro_batches);

}  // namespace tessera::parallel
