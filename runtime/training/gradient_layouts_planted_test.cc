// Tests which bugs the training contract (gradient_layouts_test.cc) would detect: each bug makes a gradient or the norm
// differ from one rank's by at least a hundred times what the contract allows.
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/plan/one_forward_one_backward.h"
#include "tests/support/planted_bug.h"
#include "tests/support/pretend_device.h"
#include "tests/support/saved_activations.h"
#include "tests/support/training_runs.h"

namespace tessera::runtime {
namespace {

struct Planting {
  const char* bug;
  const char* model;
  parallel::MeshShape shape;
  int passes = 1;
  bool sequence_parallel = false;
  bool sharded = false;
  int steps = 1;
};

class PlantedTrainingTest : public testing::TestWithParam<Planting> {};

TEST_P(PlantedTrainingTest, IsNoticed) {
  const Planting& planting = GetParam();
  const TrainingRuns runs(planting.model);
  const TrainingRuns::Result serial = runs.Run({}, {.steps = planting.steps}).front();
  const TrainingRuns::Options options{.sequence_parallel = planting.sequence_parallel,
                                      .steps = planting.steps,
                                      .passes = planting.passes,
                                      .sharded = planting.sharded};
  EXPECT_LE(runs.WorstError(planting.shape, runs.Run(planting.shape, options), serial), 1e-10);
  const PlantedBug planted(planting.bug);
  EXPECT_GE(runs.WorstError(planting.shape, runs.Run(planting.shape, options), serial), 1e-8);
}

INSTANTIATE_TEST_SUITE_P(
    Bugs, PlantedTrainingTest,
    testing::Values(Planting{"sequence_gradient_not_summed", "pixart_sigma", {.ulysses = 2}},
                    Planting{"modulation_gradient_not_summed", "pixart_sigma", {.ring = 2}},
                    Planting{"head_norm_gradient_not_summed", "flux_dev", {.tensor = 2}},
                    Planting{"ring_gradients_stay", "flux_dev", {.ring = 2}},
                    Planting{"loss_times_sequence", "pixart_sigma", {.ulysses = 2}},
                    Planting{"norm_of_own_shard", "pixart_sigma", {.tensor = 2}},
                    Planting{"accumulation_not_averaged", "pixart_sigma", {}, 2},
                    Planting{"frame_gradient_of_one_stage", "pixart_sigma", {.pipe = 2}, 2},
                    Planting{"norm_of_own_stage", "flux_dev", {.pipe = 2}, 2},
                    Planting{"text_gradient_ends_at_its_stage", "flux_dev", {.pipe = 2}, 2},
                    Planting{"sharded_gradient_not_reduced", "pixart_sigma", {.data = 2}, 1, false, true},
                    Planting{"norm_of_own_rows", "pixart_sigma", {.data = 2}, 1, false, true},
                    Planting{"sharded_weights_stale", "pixart_sigma", {.data = 2}, 1, false, true, 2}),
    [](const auto& info) { return info.param.bug; });

// The parameters that each tensor rank reads only for its tokens: HunyuanDiT's norms; and biases after sums, the
// embedding of patches and the output projection.
INSTANTIATE_TEST_SUITE_P(
    SharedTokens, PlantedTrainingTest,
    testing::Values(Planting{"token_norm_gradient_not_summed", "hunyuan11", {.tensor = 2}, 1, true},
                    Planting{"modulation_gradient_not_summed", "pixart_sigma", {.tensor = 2}, 1, true},
                    Planting{"head_norm_gradient_not_summed", "flux_dev", {.tensor = 2}, 1, true}),
    [](const auto& info) { return info.param.bug; });

TEST(PlantedReferencesTest, AReferenceThatEveryRankEmbedsIsNoticed) {
  const TrainingRuns runs("flux_dev");
  const TrainingRuns::Options options{.references = true};
  const TrainingRuns::Result serial = runs.Run({}, options).front();
  const parallel::MeshShape shape{.ulysses = 2};
  EXPECT_LE(runs.WorstError(shape, runs.Run(shape, options), serial), 1e-10);
  const PlantedBug planted("references_embedded_by_every_rank");
  EXPECT_GE(runs.WorstError(shape, runs.Run(shape, options), serial), 1e-8);
}

TEST(PlantedReferencesTest, ReferencesInAnotherOrderAreNoticed) {
  const TrainingRuns runs("flux_dev");
  const std::vector<double> losses = runs.Run({}, {.references = true}).front().losses;
  const PlantedBug planted("references_swapped");
  const std::vector<double> swapped = runs.Run({}, {.references = true}).front().losses;
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_GT(std::abs(swapped[i] - losses[i]), 1e-6 * losses[i]) << i;
}

TEST(PlantedEightBitsTest, ScalesOfARanksOwnColumnsAreNoticed) {
  const TrainingRuns runs("pixart_sigma");
  const TrainingRuns::Options options{.adapter = true, .matrices = TrainingRuns::Matrices::kEightBits};
  const TrainingRuns::Result serial = runs.Run({}, options).front();
  const parallel::MeshShape shape{.tensor = 2};
  EXPECT_LE(runs.WorstError(shape, runs.Run(shape, options), serial, /*adapter=*/true), 1e-10);
  const PlantedBug planted("scale_of_own_columns");
  EXPECT_GE(runs.WorstError(shape, runs.Run(shape, options), serial, /*adapter=*/true), 1e-8);
}

TEST(PlantedEightBitsTest, ScalesOfOtherRanksRowsThatAreLostAreNoticed) {
  const TrainingRuns runs("pixart_sigma");
  TrainingRuns::Options options{.adapter = true, .matrices = TrainingRuns::Matrices::kEightBits};
  const TrainingRuns::Result serial = runs.Run({}, options).front();
  options.sharded = true;
  const parallel::MeshShape shape{.data = 2};
  EXPECT_LE(runs.WorstError(shape, runs.Run(shape, options), serial, /*adapter=*/true), 1e-10);
  const PlantedBug planted("sharded_scales_lost");
  EXPECT_GE(runs.WorstError(shape, runs.Run(shape, options), serial, /*adapter=*/true), 1e-8);
}

class PlantedSwappedBlocksTest : public testing::Test {
 protected:
  TrainingRuns::Result Run(bool swaps) const {
    TrainingRuns::Options options{.steps = 2, .adapter = true, .device = kPretendDevice};
    if (swaps) options.waiting = {0, 1, 2, 3};
    const int64_t calls = PretendDeviceCalls();
    const TrainingRuns::Result result = runs_.Run({}, options).front();
    EXPECT_GT(PretendDeviceCalls(), calls);
    EXPECT_EQ(result.swaps, swaps);
    return result;
  }

  const TrainingRuns runs_{"flux_dev"};
};

TEST_F(PlantedSwappedBlocksTest, ACopyThatIsNotWaitedForIsNoticed) {
  const TrainingRuns::Result expected = Run(false);
  EXPECT_EQ(Run(true).losses, expected.losses);
  const PlantedBug planted("swapped_block_not_awaited");
  EXPECT_NE(Run(true).losses, expected.losses);
}

TEST_F(PlantedSwappedBlocksTest, ACopyOverABlockThatIsInUseIsNoticed) {
  EXPECT_NO_THROW(Run(true));
  const PlantedBug planted("swapped_block_overwritten_in_use");
  EXPECT_ANY_THROW(Run(true));
}

TEST(PlantedSavedActivationsTest, AllForwardsBeforeAllBackwardsAreNoticed) {
  const auto most_held = [] {
    int held = 0, most = 0;
    for (const parallel::StagePass& pass : parallel::OneForwardOneBackward(0, 2, 8)) {
      held += pass.direction == parallel::StagePass::Direction::kForward ? 1 : -1;
      most = std::max(most, held);
    }
    return most;
  };
  EXPECT_EQ(most_held(), 2);
  const PlantedBug planted("all_forwards_first");
  EXPECT_GT(most_held(), 2);
}

TEST(PlantedSavedActivationsTest, GatheredTokensThatAreKeptAreNoticed) {
  const SavedActivations saved("flux_dev");
  const double serial = saved.Bytes({});
  EXPECT_LE(saved.Bytes({.ranks = 4, .shares_tokens = true}), serial * 0.3);
  const PlantedBug planted("gathered_tokens_kept");
  EXPECT_GT(saved.Bytes({.ranks = 4, .shares_tokens = true}), serial * 0.3);
}

}  // namespace
}  // namespace tessera::runtime
