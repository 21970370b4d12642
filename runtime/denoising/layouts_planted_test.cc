// Switches on bugs of parallel code one by one: the comparisons of layouts_test.cc and pipefusion_test.cc must detect
// each.
#include <gtest/gtest.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/device_batches.h"
#include "tests/support/picture_reference.h"
#include "tests/support/pipefusion_runs.h"
#include "tests/support/planted_bug.h"
#include "tests/support/steady_waits.h"
#include "tests/support/test_folder.h"

namespace tessera::runtime {
namespace {

struct LayoutBug {
  const char* bug;
  const char* model;
  const char* layout;
};

class PlantedLayoutTest : public testing::TestWithParam<LayoutBug> {};

TEST_P(PlantedLayoutTest, IsFarBeyondTheToleranceAndNothingElseIs) {
  const LayoutRuns runs(GetParam().model);
  const parallel::Layout layout = *parallel::ParseLayout(GetParam().layout);
  const std::vector<at::Tensor> serial = runs.RunSerially(at::kDouble);
  {
    const PlantedBug planted(GetParam().bug);
    EXPECT_GT(runs.WorstError(layout, serial, at::kDouble), 1e-6);
  }
  EXPECT_LE(runs.WorstError(layout, serial, at::kDouble), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Bugs, PlantedLayoutTest,
                         testing::Values(LayoutBug{"ring_merge_unscaled", "pixart_alpha", "ring=2"},
                                         LayoutBug{"ring_wrong_owner", "pixart_alpha", "ring=2"},
                                         LayoutBug{"row_bias_before_sum", "pixart_alpha", "tensor=2"},
                                         LayoutBug{"packed_weight_sharded_plainly", "flux_dev", "tensor=2"},
                                         LayoutBug{"text_keys_twice", "sd3", "ulysses=2"},
                                         LayoutBug{"guidance_halves_swapped", "sd35", "cfg=2"},
                                         LayoutBug{"noise_per_rank", "dit", "ulysses=2"},
                                         LayoutBug{"strips_in_arrival_order", "dit", "ulysses=2,patches=3,warmup=3"},
                                         LayoutBug{"skip_of_wrong_block", "hunyuan11", "pipe=2"}),
                         [](const auto& info) { return info.param.bug; });

TEST(PlantedPictureTest, ARuleOnOtherRowsIsNotTheLatentsOfOneRank) {
  LayoutRuns runs("pixart_alpha");
  runs.BeginFromPictures(2);
  const parallel::Layout layout = *parallel::ParseLayout("pipe=2,patches=3,warmup=3");
  const std::vector<at::Tensor> serial = runs.RunSerially(at::kDouble);
  {
    const PlantedBug planted("blend_rows_of_the_image");
    EXPECT_GT(runs.WorstError(layout, serial, at::kDouble), 1e-6);
  }
  EXPECT_LE(runs.WorstError(layout, serial, at::kDouble), 1e-12);
}

TEST(PlantedPictureTest, ASamplerThatBeginsAtStepZeroIsNotThePlainLoop) {
  for (const char* model : {"pixart_alpha", "sd3"}) {
    LayoutRuns runs(model);
    BeginFromPicturesPlainly(runs, 2);
    const PlantedBug planted("begin_step_ignored");
    EXPECT_GT(ErrorOfPlainLoop(runs, runs.RunSerially(at::kDouble)), 1e-6) << model;
  }
}

TEST(PlantedWaitsTest, WhatTheHostWaitsForInEveryStepIsCounted) {
  const LayoutRuns runs("pixart_alpha");
  for (const char* text : {"serial", "ulysses=2", "pipe=2,patches=3,warmup=1"}) {
    const parallel::Layout layout = *parallel::ParseLayout(text);
    EXPECT_EQ(SteadyWaits(runs, layout), HostWaits{}) << text;
    for (const char* bug : {"latents_read_each_step", "table_made_each_step"}) {
      const PlantedBug planted(bug);
      EXPECT_GE(SteadyWaits(runs, layout).waits, 3) << bug << " " << text;
    }
  }
}

TEST(PlantedBatchTest, ImagesThatShareAPassOfADeviceAreNotThoseOfTheirRequestsAlone) {
  const LayoutRuns runs("pixart_alpha");
  for (const char* text : {"serial", "cfg=2"}) {
    const parallel::Layout layout = *parallel::ParseLayout(text);
    const at::Tensor alone = LatentsOnDevice(runs, layout, /*together=*/false);
    const PlantedBug planted("images_share_passes_on_a_device");
    EXPECT_FALSE(at::equal(LatentsOnDevice(runs, layout, /*together=*/true), alone)) << text;
    EXPECT_TRUE(at::equal(LatentsOnDevice(runs, layout, /*together=*/false), alone)) << text;
  }
}

TEST(PlantedPipelineTest, ASkipSentToTheWrongStageIsMissedByTheBlockThatReadsIt) {
  const LayoutRuns runs("hunyuan11");
  const PlantedBug planted("pipe_skip_to_wrong_stage");
  try {
    runs.Run(*parallel::ParseLayout("pipe=2"), at::kDouble);
    ADD_FAILURE() << "nobody noticed";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("was not given its skip"), std::string::npos) << error.what();
  }
}

TEST(PlantedPipelineTest, LaterPatchesWithoutTheTextAreNotTheEmulation) {
  const PipeFusionRuns runs("sd3");
  const parallel::Layout layout = *parallel::ParseLayout("pipe=2,patches=3,warmup=1");
  const at::Tensor emulated = runs.Emulate(layout);
  EXPECT_TRUE(at::equal(runs.Run(layout), emulated));
  const PlantedBug planted("stale_text_omitted");
  EXPECT_FALSE(at::equal(runs.Run(layout), emulated));
}

TEST(PlantedPipelineTest, KeysOfAnotherRequestShowInTheImage) {
  const PipeFusionRuns runs("sd3");
  const parallel::Layout layout = *parallel::ParseLayout("pipe=2,patches=3,warmup=1");
  const PlantedBug planted("stale_store_across_requests");
  EXPECT_FALSE(at::equal(runs.RunAround(layout, 2), runs.RunAround(layout, 3)));
}

class PlantedRecordTest : public testing::Test {
 protected:
  // Compares the blocks' results on that layout with those on one rank.
  control::RecordComparison Compare(const LayoutRuns& runs, const std::string& layout) {
    const std::string serial = folder_ / absl::StrCat("serial-", runs_), run = folder_ / absl::StrCat("run-", runs_);
    ++runs_;
    std::filesystem::create_directory(serial);
    std::filesystem::create_directory(run);
    {
      const PlantedBug none("");
      runs.Run({}, at::kDouble, serial);
    }
    runs.Run(*parallel::ParseLayout(layout), at::kDouble, run);
    const absl::StatusOr<control::RecordComparison> comparison = control::CompareRecords(run, serial, 1e-11);
    EXPECT_TRUE(comparison.ok()) << comparison.status();
    return comparison.value_or(control::RecordComparison());
  }

  TestFolder folder_;
  int runs_ = 0;
};

TEST_F(PlantedRecordTest, ASkipOfTheWrongBlockShowsWhereItIsRead) {
  const LayoutRuns runs("hunyuan11");
  const control::RecordComparison right = Compare(runs, "pipe=2");
  EXPECT_FALSE(right.parting.has_value());
  EXPECT_TRUE(right.complete);
  EXPECT_LT(right.farthest, 1e-12);
  const PlantedBug planted("skip_of_wrong_block");
  const control::RecordComparison wrong = Compare(runs, "pipe=2");
  ASSERT_TRUE(wrong.parting.has_value());
  EXPECT_EQ(wrong.parting->place.step, 0);
  EXPECT_GT(wrong.parting->place.block, 1);  // the first block that reads a skip
  EXPECT_EQ(wrong.parting->rank, 1);
  EXPECT_GT(wrong.parting->distance, 1e-6);
}

TEST_F(PlantedRecordTest, AttentionThatMergesWronglyShowsInTheFirstBlock) {
  const LayoutRuns runs("sd3");
  for (const char* layout :
       {"ring=2", "cfg=2,ulysses=2", "tensor=2", "ring=3,ulysses=2", "ulysses=2,patches=3,warmup=3"}) {
    const control::RecordComparison right = Compare(runs, layout);
    EXPECT_FALSE(right.parting.has_value()) << layout;
    EXPECT_TRUE(right.complete) << layout;
    EXPECT_GT(right.states, 0) << layout;
    EXPECT_LT(right.farthest, 1e-12) << layout;
  }
  const PlantedBug planted("ring_merge_unscaled");
  const control::RecordComparison wrong = Compare(runs, "ring=2");
  ASSERT_TRUE(wrong.parting.has_value());
  EXPECT_EQ(wrong.parting->place.step, 0);
  EXPECT_EQ(wrong.parting->place.block, 0);
}

}  // namespace
}  // namespace tessera::runtime
