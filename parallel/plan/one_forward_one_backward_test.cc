#include "parallel/plan/one_forward_one_backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tessera::parallel {
namespace {

using Direction = StagePass::Direction;

constexpr int kNone = -1;

// The messages between two passes: the micro-batches whose states and gradients are sent to and received from
// neighbours.
struct Messages {
  int state_to_next = kNone, state_from_previous = kNone, gradient_to_previous = kNone, gradient_from_next = kNone;

  bool done() const {
    return std::max({state_to_next, state_from_previous, gradient_to_previous, gradient_from_next}) < 0;
  }
};

std::vector<Messages> MessagesOf(int stage, int stages, const std::vector<StagePass>& passes) {
  std::vector<Messages> exchanges(passes.size() + 1);
  const bool first = stage == 0, last = stage + 1 == stages;
  for (size_t i = 0; i < passes.size(); ++i) {
    const auto [direction, micro_batch] = passes[i];
    if (direction == Direction::kForward) {
      if (!first) exchanges[i].state_from_previous = micro_batch;
      if (!last) exchanges[i + 1].state_to_next = micro_batch;
    } else {
      if (!last) exchanges[i].gradient_from_next = micro_batch;
      if (!first) exchanges[i + 1].gradient_to_previous = micro_batch;
    }
  }
  return exchanges;
}

// Returns whether all stages finish if each send waits for its receiver, and checks that each message is the expected
// one.
bool Ends(int stages, int micro_batches) {
  std::vector<std::vector<Messages>> exchanges;
  for (int stage = 0; stage < stages; ++stage) {
    exchanges.push_back(MessagesOf(stage, stages, OneForwardOneBackward(stage, stages, micro_batches)));
  }
  std::vector<size_t> at(static_cast<size_t>(stages), 0);  // the current exchange of each stage
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t stage = 0; stage < at.size(); ++stage) {
      if (at[stage] == exchanges[stage].size()) continue;
      Messages& own = exchanges[stage][at[stage]];
      if (stage + 1 < at.size() && at[stage + 1] < exchanges[stage + 1].size()) {
        Messages& next = exchanges[stage + 1][at[stage + 1]];
        const auto meet = [&moved](int& sent, int& received) {
          if (sent == kNone || received == kNone) return;
          EXPECT_EQ(sent, received);
          sent = received = kNone;
          moved = true;
        };
        meet(own.state_to_next, next.state_from_previous);
        meet(next.gradient_to_previous, own.gradient_from_next);
      }
      if (own.done()) {
        ++at[stage];
        moved = true;
      }
    }
  }
  for (size_t stage = 0; stage < at.size(); ++stage) {
    if (at[stage] < exchanges[stage].size()) return false;
  }
  return true;
}

template <typename Function>
void ForEachPipeline(Function function) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int micro_batches = 1; micro_batches <= 20; ++micro_batches) {
      SCOPED_TRACE(absl::StrCat(stages, " stages, ", micro_batches, " micro-batches"));
      function(stages, micro_batches);
    }
  }
}

TEST(OneForwardOneBackwardTest, NoPipelineStandsStillThoughEachSendWaitsForItsReceiver) {
  ForEachPipeline([](int stages, int micro_batches) { EXPECT_TRUE(Ends(stages, micro_batches)); });
}

TEST(OneForwardOneBackwardTest, EveryMicroBatchGoesForwardsAndThenBackwardsOnce) {
  ForEachPipeline([](int stages, int micro_batches) {
    for (int stage = 0; stage < stages; ++stage) {
      int forwards = 0, backwards = 0;
      for (const auto& [direction, micro_batch] : OneForwardOneBackward(stage, stages, micro_batches)) {
        EXPECT_EQ(micro_batch, direction == Direction::kForward ? forwards++ : backwards++);
        EXPECT_LE(backwards, forwards);
      }
      EXPECT_EQ(forwards, micro_batches);
      EXPECT_EQ(backwards, micro_batches);
    }
  });
}

TEST(OneForwardOneBackwardTest, AStageHoldsNoMoreMicroBatchesThanThereAreStagesFromItOn) {
  ForEachPipeline([](int stages, int micro_batches) {
    for (int stage = 0; stage < stages; ++stage) {
      int held = 0, most = 0;
      for (const StagePass& pass : OneForwardOneBackward(stage, stages, micro_batches)) {
        held += pass.direction == Direction::kForward ? 1 : -1;
        most = std::max(most, held);
      }
      EXPECT_EQ(most, std::min(stages - stage, micro_batches)) << "stage " << stage;
    }
  });
}

TEST(OneForwardOneBackwardTest, TheLastStageTakesEachMicroBatchBackwardsAtOnce) {
  EXPECT_EQ(
      OneForwardOneBackward(1, 2, 2),
      (std::vector<StagePass>{
          {Direction::kForward, 0}, {Direction::kBackward, 0}, {Direction::kForward, 1}, {Direction::kBackward, 1}}));
}

}  // namespace
}  // namespace tessera::parallel
