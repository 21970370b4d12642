// Switches on bugs of graphs one by one: the comparison of graphed_forward_test.cc must detect each.
#include <gtest/gtest.h>

#include "tests/support/graph_runs.h"
#include "tests/support/planted_bug.h"

namespace tessera::runtime {
namespace {

std::vector<size_t> TwoInTurn(int step) {
  return step < 20 ? std::vector<size_t>{step % 2 == 0 ? size_t{0} : size_t{2}} : std::vector<size_t>{};
}

class PlantedGraphTest : public testing::TestWithParam<const char*> {};

TEST_P(PlantedGraphTest, ChangesImages) {
  const LayoutRuns runs("flux_dev");
  const at::Tensor operators = RunOnDevice(runs, std::nullopt, TwoInTurn).latents;
  {
    const PlantedBug planted(GetParam());
    EXPECT_FALSE(at::equal(RunOnDevice(runs, StepGraphsOptions(), TwoInTurn).latents, operators));
  }
  EXPECT_TRUE(at::equal(RunOnDevice(runs, StepGraphsOptions(), TwoInTurn).latents, operators));
}

INSTANTIATE_TEST_SUITE_P(Bugs, PlantedGraphTest,
                         testing::Values("graph_keeps_its_timestep", "graph_reads_the_text_before"),
                         [](const auto& info) { return info.param; });

// A certificate detects the bug by its predictions.
TEST(PlantedGraphPredictionTest, ChangesPredictions) {
  const LayoutRuns runs("flux_dev");
  const auto predictions = [&](std::optional<StepGraphsOptions> graphs) {
    return RunOnDevice(
               runs, graphs, AllJobsFor20Steps, [](std::vector<DenoiseJob>&) {}, {}, /*predict=*/true)
        .predictions;
  };
  const at::Tensor operators = predictions(std::nullopt);
  const PlantedBug planted("graph_keeps_its_timestep");
  EXPECT_FALSE(at::equal(predictions(StepGraphsOptions()), operators));
}

TEST(PlantedGraphMemoryTest, AGraphThatReadsFreedMemoryIsNoticed) {
  const LayoutRuns runs("flux_dev");
  const PlantedBug planted("graph_reads_freed_memory");
  EXPECT_ANY_THROW(RunOnDevice(runs, StepGraphsOptions(), TwoInTurn));
}

}  // namespace
}  // namespace tessera::runtime
