// Steps whose passes the device repeats as graphs compute exactly the same bits as operators, for every family, sampler
// and batch.
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/graph_runs.h"

namespace tessera::runtime {
namespace {

constexpr StepGraphsOptions kGraphs;

class GraphedStepsTest : public testing::TestWithParam<const char*> {};

TEST_P(GraphedStepsTest, AreThoseOfOperatorsForEverySampler) {
  LayoutRuns runs(GetParam());
  const SamplerConfig own = runs.sampler();
  for (const std::string& name : ValidSamplers(own)) {
    runs.sampler() = *WithSampler(own, name);
    const GraphRun operators = RunOnDevice(runs, std::nullopt), graphs = RunOnDevice(runs, kGraphs);
    EXPECT_TRUE(at::equal(graphs.latents, operators.latents)) << name;
    EXPECT_GT(graphs.graphs, 0u) << name;
    EXPECT_LT(graphs.operators, operators.operators) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GraphedStepsTest,
                         testing::Values("dit", "flux_dev", "hunyuan11", "pixart_alpha", "flux2_klein_base",
                                         "qwen_image", "sd3", "sd35", "z_image_base"),
                         [](const auto& info) { return info.param; });

void ExpectEqualRuns(const LayoutRuns& runs, const BatchAt& batch_at, const PrepareJobs& prepare) {
  const GraphRun operators = RunOnDevice(runs, std::nullopt, batch_at, prepare);
  const GraphRun graphs = RunOnDevice(runs, kGraphs, batch_at, prepare);
  EXPECT_TRUE(at::equal(graphs.latents, operators.latents));
  EXPECT_GT(graphs.graphs, 0u);
  EXPECT_LT(graphs.operators, operators.operators);
}

TEST(GraphedBatchTest, JobsMayJoinAndLeave) {
  const LayoutRuns runs("pixart_alpha");
  ExpectEqualRuns(
      runs,
      [](int step) -> std::vector<size_t> {
        if (step < 4) return {0};
        if (step < 8) return {0, 1, 2};
        if (step < 12) return {2, 1};
        if (step < 16) return {0, 1, 2};
        return step < 20 ? std::vector<size_t>{1} : std::vector<size_t>{};
      },
      [](std::vector<DenoiseJob>&) {});
}

TEST(GraphedBatchTest, ABatchMayTakeTurnsWithAnotherOfItsShape) {
  const LayoutRuns runs("flux_dev");
  ExpectEqualRuns(
      runs,
      [](int step) {
        return step < 20 ? std::vector<size_t>{step % 2 == 0 ? size_t{0} : size_t{2}} : std::vector<size_t>{};
      },
      [](std::vector<DenoiseJob>&) {});
}

TEST(GraphedBatchTest, GuidanceMayEndAndABranchMayLeaveBlocksOut) {
  const LayoutRuns runs("sd35");
  ExpectEqualRuns(runs, AllJobsFor20Steps, [](std::vector<DenoiseJob>& jobs) {
    // Skip-layer guidance from step 2 to step 12 for the first job, which has guidance.
    models::GuidanceBranch& conditional = jobs[0].guidance.branches.back();
    models::GuidanceBranch skipping = conditional;
    skipping.terms = {{.weight = -1.5, .start = 0.1, .stop = 0.6}};
    skipping.skipped_blocks = {1};
    conditional.terms.push_back({.weight = 1.5, .start = 0.1, .stop = 0.6});
    jobs[0].guidance.branches.push_back(std::move(skipping));
  });
}

// A layout is certified in bf16 by its predictions, so these must be computed by the graphs that serve.
TEST(GraphedPredictionsTest, AreMadeByTheGraphsOfSteps) {
  const LayoutRuns runs("flux_dev");
  const auto nothing = [](std::vector<DenoiseJob>&) {};
  const GraphRun operators = RunOnDevice(runs, std::nullopt, AllJobsFor20Steps, nothing, {}, /*predict=*/true);
  const GraphRun graphs = RunOnDevice(runs, kGraphs, AllJobsFor20Steps, nothing, {}, /*predict=*/true);
  EXPECT_TRUE(at::equal(graphs.predictions, operators.predictions));
  EXPECT_TRUE(at::equal(graphs.latents, operators.latents));
  // Half of the passes are predictions.
  EXPECT_LT(graphs.operators, operators.operators / 2);
}

TEST(GraphBoundsTest, NoMoreGraphsAreKeptThanAllowed) {
  const LayoutRuns runs("pixart_alpha");
  const auto changing = [](int step) {
    return step < 18 ? std::vector<std::vector<size_t>>{{0}, {0, 1}, {0, 1, 2}}[static_cast<size_t>(step / 3 % 3)]
                     : std::vector<size_t>{};
  };
  const GraphRun all = RunOnDevice(runs, kGraphs, changing);
  EXPECT_GE(all.graphs, 3u);
  const GraphRun one = RunOnDevice(runs, StepGraphsOptions{.most_graphs = 1}, changing);
  EXPECT_LE(one.graphs, 1u);
  EXPECT_TRUE(at::equal(one.latents, all.latents));
}

TEST(GraphBoundsTest, GraphsThatWouldTakeTooMuchMemoryAreGivenUp) {
  const LayoutRuns runs("sd3");
  const GraphRun operators = RunOnDevice(runs, std::nullopt),
                 few = RunOnDevice(runs, StepGraphsOptions{.most_bytes = 1000});
  EXPECT_EQ(few.graphs, 0u);
  EXPECT_TRUE(at::equal(few.latents, operators.latents));
}

TEST(GraphBoundsTest, PassesThatWaitForOtherRanksHaveNone) {
  const LayoutRuns runs("sd3");
  const parallel::Layout layout = *parallel::ParseLayout("ulysses=2");
  const auto nothing = [](std::vector<DenoiseJob>&) {};
  const GraphRun graphs = RunOnDevice(runs, kGraphs, AllJobsFor20Steps, nothing, layout);
  EXPECT_EQ(graphs.graphs, 0u);
  EXPECT_TRUE(at::equal(graphs.latents, RunOnDevice(runs, std::nullopt, AllJobsFor20Steps, nothing, layout).latents));
}

}  // namespace
}  // namespace tessera::runtime
