// Tests the layout contract through NCCL: on every layout the latents after every step are those of one rank, with a
// NCCL that completes every transfer as late as it may (tests/support/late_nccl.h).
#include <gtest/gtest.h>

#include "tests/support/graph_runs.h"
#include "tests/support/late_nccl.h"
#include "tests/support/layout_runs.h"

namespace tessera::runtime {
namespace {

struct NcclLayouts {
  const char* model;
  std::vector<const char*> layouts;
};

void ExpectLatentsOfOneRank(const NcclLayouts& tested) {
  const LayoutRuns runs(tested.model);
  const std::vector<at::Tensor> serial = runs.RunSerially(at::kDouble);
  const std::vector<parallel::Layout> layouts = runs.Valid(tested.layouts);
  EXPECT_FALSE(layouts.empty());
  for (const parallel::Layout& layout : layouts) {
    LateNccl nccl;
    const double error = runs.WorstError(layout, serial, at::kDouble, kPretendDevice);
    EXPECT_GE(error, 0) << parallel::LayoutText(layout);
    EXPECT_LE(error, 1e-12) << parallel::LayoutText(layout);
    EXPECT_EQ(nccl.problems(), std::vector<std::string>()) << parallel::LayoutText(layout);
    EXPECT_GT(nccl.calls(), 0) << parallel::LayoutText(layout);
    EXPECT_EQ(nccl.destroyed(), nccl.made()) << parallel::LayoutText(layout);
  }
}

class NcclLayoutTest : public testing::TestWithParam<NcclLayouts> {};

TEST_P(NcclLayoutTest, MakesTheLatentsOfOneRank) { ExpectLatentsOfOneRank(GetParam()); }

// Covers the time between Start and Finish of a ring, and the all-to-alls of Ulysses.
TEST(NcclGraphTest, PassesThatAreLaunchedAsGraphsMakeWhatTheirOperatorsMake) {
  const LayoutRuns runs("pixart_alpha");
  const BatchAt six_steps = [](int step) { return step < 6 ? std::vector<size_t>{0, 1, 2} : std::vector<size_t>{}; };
  for (const char* layout : {"ring=2,ulysses=2", "tensor=2"}) {
    LateNccl nccl;
    const auto run = [&](std::optional<StepGraphsOptions> graphs) {
      return RunOnDevice(
          runs, graphs, six_steps, [](std::vector<DenoiseJob>&) {}, *parallel::ParseLayout(layout));
    };
    const GraphRun operators = run(std::nullopt), graphs = run(StepGraphsOptions{});
    EXPECT_GT(graphs.graphs, 0u) << layout;
    EXPECT_TRUE(graphs.latents.equal(operators.latents)) << layout;
    EXPECT_EQ(nccl.problems(), std::vector<std::string>()) << layout;
  }
}

std::string NameOf(const testing::TestParamInfo<NcclLayouts>& info) { return info.param.model; }

// The families with the most kinds of messages, on every axis and some combinations.
INSTANTIATE_TEST_SUITE_P(Some, NcclLayoutTest,
                         testing::Values(NcclLayouts{"flux_dev",
                                                     {"ulysses=2", "ring=3", "tensor=2", "pipe=2", "ring=2,ulysses=2",
                                                      "pipe=2,patches=3,warmup=3"}},
                                         NcclLayouts{"hunyuan11",
                                                     {"cfg=2,ulysses=2", "pipe=2,tensor=2",
                                                      "pipe=2,ring=2,patches=2,warmup=9"}},
                                         NcclLayouts{"pixart_alpha", {"cfg=2,ring=2", "ring=5", "ulysses=2,tensor=2"}}),
                         NameOf);

std::vector<const char*> All() {
  std::vector<const char*> all = WholeLayouts();
  all.insert(all.end(), {"pipe=2,patches=3,warmup=3", "pipe=2,ulysses=2,patches=4,warmup=3",
                         "pipe=2,ring=2,patches=2,warmup=9", "cfg=2,ring=3,patches=5,warmup=3"});
  return all;
}

INSTANTIATE_TEST_SUITE_P(DISABLED_Long, NcclLayoutTest,
                         testing::Values(NcclLayouts{"dit", All()}, NcclLayouts{"flux_dev", All()},
                                         NcclLayouts{"hunyuan11", All()}, NcclLayouts{"pixart_alpha", All()},
                                         NcclLayouts{"sd3", All()}, NcclLayouts{"sd35", All()}),
                         NameOf);

}  // namespace
}  // namespace tessera::runtime
