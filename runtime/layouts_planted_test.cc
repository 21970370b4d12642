// Bugs of parallel code, each switched on in turn: the comparison of layouts_test.cc must notice it.
#include <gtest/gtest.h>

#include "kernels/planted.h"
#include "runtime/layout_runs.h"

namespace tessera {
namespace {

const char* chosen = "";

struct PlantedBug {
  const char* bug;
  const char* model;
  const char* layout;
};

}  // namespace

bool Planted(const char* bug) { return std::string(chosen) == bug; }

namespace {

class PlantedLayoutTest : public testing::TestWithParam<PlantedBug> {};

TEST_P(PlantedLayoutTest, IsFarBeyondTheToleranceAndNothingElseIs) {
  const LayoutRuns runs(GetParam().model);
  const Layout layout = *ParseLayout(GetParam().layout);
  const std::vector<at::Tensor> serial = runs.RunSerially(at::kDouble);
  chosen = GetParam().bug;
  const double with_bug = runs.WorstError(layout, serial, at::kDouble);
  chosen = "";
  EXPECT_GT(with_bug, 1e-6);
  EXPECT_LE(runs.WorstError(layout, serial, at::kDouble), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Bugs, PlantedLayoutTest,
                         testing::Values(PlantedBug{"ring_merge_unscaled", "pixart_alpha", "ring=2"},
                                         PlantedBug{"ring_wrong_owner", "pixart_alpha", "ring=2"},
                                         PlantedBug{"row_bias_before_sum", "pixart_alpha", "tensor=2"},
                                         PlantedBug{"text_keys_twice", "sd3", "ulysses=2"},
                                         PlantedBug{"guidance_halves_swapped", "sd35", "cfg=2"},
                                         PlantedBug{"noise_per_rank", "dit", "ulysses=2"},
                                         PlantedBug{"skip_of_wrong_block", "hunyuan11", "pipe=2"}),
                         [](const auto& info) { return info.param.bug; });

}  // namespace
}  // namespace tessera
