// Tests the layout contract: on every layout the latents after every step are those of one rank.
#include <gtest/gtest.h>

#include "tests/support/layout_runs.h"
#include "tests/support/many_heads_folder.h"

namespace tessera::runtime {
namespace {

class LayoutTest : public testing::TestWithParam<const char*> {
 protected:
  LayoutRuns runs_{GetParam()};
};

TEST_P(LayoutTest, EveryLayoutMakesTheLatentsOfOneRank) {
  const std::vector<at::Tensor> serial = runs_.RunSerially(at::kDouble);
  std::vector<const char*> texts = WholeLayouts();
  texts.insert(texts.end(), {"pipe=2,patches=3", "patches=3,warmup=3", "pipe=2,patches=3,warmup=3",
                             "pipe=2,ulysses=2,patches=4,warmup=3", "pipe=2,ring=2,patches=2,warmup=9",
                             "cfg=2,ring=3,patches=5,warmup=3"});
  const std::vector<parallel::Layout> layouts = runs_.Valid(texts);
  EXPECT_GE(layouts.size(), 26u);
  for (const parallel::Layout& layout : layouts) {
    const double error = runs_.WorstError(layout, serial, at::kDouble);
    EXPECT_GE(error, 0) << parallel::LayoutText(layout);
    EXPECT_LE(error, 1e-12) << parallel::LayoutText(layout);
  }
}

TEST_P(LayoutTest, StagesAloneChangeNoBit) {
  const std::vector<at::Tensor> serial = runs_.RunSerially(at::kDouble);
  for (const parallel::Layout& layout : runs_.Valid({"pipe=2", "pipe=3", "pipe=4", "pipe=2,patches=4"})) {
    EXPECT_EQ(runs_.WorstError(layout, serial, at::kDouble), 0) << parallel::LayoutText(layout);
  }
}

TEST_P(LayoutTest, SinglePrecisionStaysWithinItsOwnRounding) {
  const std::vector<at::Tensor> exact = runs_.RunSerially(at::kDouble), serial = runs_.RunSerially(at::kFloat);
  double own = 0;  // the distance of serial fp32 from fp64
  for (int step = 0; step < LayoutRuns::kSteps; ++step) {
    own = std::max(own,
                   ((serial[step].to(at::kDouble) - exact[step]).abs().max() / exact[step].abs().max()).item<double>());
  }
  for (const parallel::Layout& layout : runs_.Valid({"cfg=2,ulysses=2", "ring=3", "tensor=2", "pipe=2"})) {
    EXPECT_LE(runs_.WorstError(layout, serial, at::kFloat), std::max(1e-5, 2 * own)) << parallel::LayoutText(layout);
  }
}

// Covers degrees that four heads do not allow, and products that four blocks do not allow.
TEST(ManyHeadsLayoutTest, EveryLayoutMakesTheLatentsOfOneRank) {
  const ManyHeadsFolder folder;
  const LayoutRuns runs(folder.path());
  const std::vector<at::Tensor> serial = runs.RunSerially(at::kDouble);
  const std::vector<std::string> layouts = {"ulysses=3",
                                            "ulysses=6",
                                            "ulysses=8",
                                            "tensor=3",
                                            "tensor=6",
                                            "tensor=8",
                                            "ring=4",
                                            "ring=6",
                                            "ring=7",
                                            "pipe=4",
                                            "pipe=5",
                                            "ulysses=3,tensor=2",
                                            "ulysses=2,tensor=4",
                                            "ring=2,ulysses=3",
                                            "ring=2,ulysses=4",
                                            "ring=4,ulysses=2",
                                            "ring=2,tensor=3",
                                            "cfg=2,ulysses=4",
                                            "cfg=2,ulysses=3",
                                            "cfg=2,ring=4",
                                            "cfg=2,tensor=4",
                                            "cfg=2,pipe=4",
                                            "pipe=4,ulysses=2",
                                            "pipe=2,ring=4",
                                            "pipe=2,tensor=4",
                                            "cfg=2,pipe=2,ring=2",
                                            "cfg=2,pipe=2,ulysses=2",
                                            "cfg=2,pipe=2,tensor=2",
                                            "cfg=2,ring=2,tensor=2",
                                            "cfg=2,ulysses=2,tensor=2",
                                            "pipe=2,ring=2,tensor=2",
                                            "pipe=2,ulysses=2,tensor=2",
                                            "cfg=2,ring=2,ulysses=2"};
  for (const std::string& text : layouts) {
    const double error = runs.WorstError(*parallel::ParseLayout(text), serial, at::kDouble);
    EXPECT_GE(error, 0) << text;
    EXPECT_LE(error, 1e-12) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LayoutTest,
                         testing::Values("dit", "flux_dev", "hunyuan11", "pixart_alpha", "sd3", "sd35"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::runtime
