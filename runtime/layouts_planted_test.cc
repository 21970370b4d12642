// Bugs of parallel code, each switched on in turn: the comparisons of layouts_test.cc and pipefusion_test.cc must
// notice it.
#include <gtest/gtest.h>

#include "kernels/planted.h"
#include "runtime/pipefusion_runs.h"

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
                                         PlantedBug{"packed_weight_sharded_plainly", "flux_dev", "tensor=2"},
                                         PlantedBug{"text_keys_twice", "sd3", "ulysses=2"},
                                         PlantedBug{"guidance_halves_swapped", "sd35", "cfg=2"},
                                         PlantedBug{"noise_per_rank", "dit", "ulysses=2"},
                                         PlantedBug{"strips_in_arrival_order", "dit", "ulysses=2,patches=3,warmup=3"},
                                         PlantedBug{"skip_of_wrong_block", "hunyuan11", "pipe=2"}),
                         [](const auto& info) { return info.param.bug; });

// The bug named in the constructor is on as long as this is there.
class Plant {
 public:
  explicit Plant(const char* bug) { chosen = bug; }
  ~Plant() { chosen = ""; }
};

TEST(PlantedPipelineTest, ASkipSentToTheWrongStageIsMissedByTheBlockThatReadsIt) {
  const LayoutRuns runs("hunyuan11");
  const Plant plant("pipe_skip_to_wrong_stage");
  try {
    runs.Run(*ParseLayout("pipe=2"), at::kDouble);
    ADD_FAILURE() << "nobody noticed";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("was not given its skip"), std::string::npos) << error.what();
  }
}

TEST(PlantedPipelineTest, LaterPatchesWithoutTheTextAreNotTheEmulation) {
  const PipeFusionRuns runs("sd3");
  const Layout layout = *ParseLayout("pipe=2,patches=3,warmup=1");
  const at::Tensor emulated = runs.Emulate(layout);
  EXPECT_TRUE(at::equal(runs.Run(layout), emulated));
  const Plant plant("stale_text_omitted");
  EXPECT_FALSE(at::equal(runs.Run(layout), emulated));
}

TEST(PlantedPipelineTest, KeysOfAnotherRequestShowInTheImage) {
  const PipeFusionRuns runs("sd3");
  const Layout layout = *ParseLayout("pipe=2,patches=3,warmup=1");
  const Plant plant("stale_store_across_requests");
  EXPECT_FALSE(at::equal(runs.RunAround(layout, 2), runs.RunAround(layout, 3)));
}

}  // namespace
}  // namespace tessera
