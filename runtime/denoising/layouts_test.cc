// Tests the layout contract: on every layout the latents after every step are those of one rank.
#include <gtest/gtest.h>

#include "tests/support/layout_runs.h"
#include "tests/support/many_heads_folder.h"
#include "tests/support/picture_reference.h"

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

// The products sum in fp32, and differences of roundings in fp64 between layouts change no code. Inputs in e4m3 have
// the errors of weights in e4m3, so that both change a step by the same order of magnitude.
TEST_P(LayoutTest, ProductsInFp8AreTheSameOnEveryLayoutAndNearPlainOnes) {
  const auto run_with = [this](control::WeightStorage weights, control::Products products) {
    runs_.ChangeLoading([=](models::LoadOptions& options) {
      options.placement.weights = weights;
      options.placement.products = products;
    });
    return runs_.RunSerially(at::kDouble);
  };
  using control::WeightStorage, control::Products;
  const std::vector<at::Tensor> stored = run_with(WeightStorage::kStored, Products::kPlain),
                                plain = run_with(WeightStorage::kFp8, Products::kPlain),
                                serial = run_with(WeightStorage::kFp8, Products::kFp8);
  const double drift = LayoutRuns::Relative(serial.front(), plain.front());
  EXPECT_GT(drift, 1e-4);
  EXPECT_LT(drift, 3 * LayoutRuns::Relative(plain.front(), stored.front()));
  const std::vector<parallel::Layout> layouts =
      runs_.Valid({"cfg=2", "ulysses=2", "ring=2", "pipe=2", "cfg=2,ulysses=2", "pipe=2,ring=2"});
  EXPECT_GE(layouts.size(), 4u);
  for (const parallel::Layout& layout : layouts) {
    const double error = runs_.WorstError(layout, serial, at::kDouble);
    EXPECT_GE(error, 0) << parallel::LayoutText(layout);
    EXPECT_LE(error, layout.mesh.pipe == layout.ranks() ? 0 : 1e-12) << parallel::LayoutText(layout);
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

// Reference pictures go with the text: a rank's share may have both, one of them, or neither.
struct ReferenceModel {
  const char* folder;
  const char* pipeline = "";  // the class of the folder
};

class ReferenceLayoutTest : public testing::TestWithParam<ReferenceModel> {};

TEST_P(ReferenceLayoutTest, EveryLayoutMakesTheLatentsOfOneRank) {
  LayoutRuns runs(GetParam().folder, GetParam().pipeline);
  const std::vector<at::Tensor> without = runs.RunSerially(at::kDouble);
  runs.LookAtPictures();
  const std::vector<at::Tensor> serial = runs.RunSerially(at::kDouble);
  for (int64_t job : {0, 1}) EXPECT_GT(LayoutRuns::Relative(serial[0][job], without[0][job]), 1e-3) << job;
  EXPECT_LE(LayoutRuns::Relative(serial[0][2], without[0][2]), 1e-12);
  std::vector<const char*> texts = WholeLayouts();
  texts.insert(texts.end(), {"patches=3,warmup=3", "pipe=2,patches=3,warmup=3", "pipe=2,ulysses=2,patches=4,warmup=3"});
  const std::vector<parallel::Layout> layouts = runs.Valid(texts);
  EXPECT_GE(layouts.size(), 20u);
  for (const parallel::Layout& layout : layouts) {
    const double error = runs.WorstError(layout, serial, at::kDouble);
    EXPECT_GE(error, 0) << parallel::LayoutText(layout);
    EXPECT_LE(error, 1e-12) << parallel::LayoutText(layout);
  }
}

// The last model's references attend only to one another.
INSTANTIATE_TEST_SUITE_P(Families, ReferenceLayoutTest,
                         testing::Values(ReferenceModel{"flux_dev"}, ReferenceModel{"flux2_klein_base"},
                                         ReferenceModel{"flux2_klein", "Flux2KleinKVPipeline"}),
                         [](const auto& info) { return info.param.folder; });

class PictureLayoutTest : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int kFirstStep = 2;
  LayoutRuns runs_{GetParam()};
};

TEST_P(PictureLayoutTest, JobsThatBeginFromAPictureAndBlendAreThePlainLoop) {
  BeginFromPicturesPlainly(runs_, kFirstStep);
  EXPECT_LE(ErrorOfPlainLoop(runs_, runs_.RunSerially(at::kDouble)), 1e-12);
}

TEST_P(PictureLayoutTest, EveryLayoutMakesTheLatentsOfOneRank) {
  runs_.BeginFromPictures(kFirstStep);
  const std::vector<at::Tensor> serial = runs_.RunSerially(at::kDouble);
  const std::vector<parallel::Layout> layouts =
      runs_.Valid({"ulysses=2", "ring=2", "tensor=2", "cfg=2", "patches=3,warmup=3", "pipe=2,patches=3,warmup=3",
                   "cfg=2,pipe=2", "pipe=2,ulysses=2,patches=4,warmup=3"});
  EXPECT_GE(layouts.size(), 7u);
  for (const parallel::Layout& layout : layouts) {
    const double error = runs_.WorstError(layout, serial, at::kDouble);
    EXPECT_GE(error, 0) << parallel::LayoutText(layout);
    EXPECT_LE(error, 1e-12) << parallel::LayoutText(layout);
  }
  for (const parallel::Layout& layout : runs_.Valid({"pipe=2", "pipe=3", "pipe=2,patches=4"})) {
    EXPECT_EQ(runs_.WorstError(layout, serial, at::kDouble), 0) << parallel::LayoutText(layout);
  }
}

TEST_P(PictureLayoutTest, OutsideTheMaskTheResultIsThePictureToTheBitOnEveryLayout) {
  runs_.BeginFromPictures(kFirstStep);
  for (const parallel::Layout& layout :
       runs_.Valid({"serial", "ulysses=2", "ring=2", "tensor=2", "cfg=2", "pipe=2,patches=3,warmup=1"})) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      runs_.OnRanks(layout, dtype, [&](const LayoutRuns::Rank& rank) {
        std::vector<DenoiseJob> jobs = runs_.Jobs(rank.family);
        for (int step = 0; step < LayoutRuns::kSteps; ++step) rank.denoiser.Step(LayoutRuns::Batch(jobs));
        rank.denoiser.Flush();
        for (size_t j = 0; j < jobs.size(); ++j) {
          EXPECT_TRUE(jobs[j].done());
          EXPECT_EQ(jobs[j].completed(), LayoutRuns::kSteps);
          const CleanStart start = runs_.PictureFor(jobs[j].geometry, j);
          const at::Tensor clean = start.latents.to(jobs[j].latents.dtype());
          const at::Tensor same = jobs[j].latents == clean;
          if (!start.mask.defined()) {
            EXPECT_FALSE(same.any().item<bool>());
            continue;
          }
          EXPECT_TRUE(at::equal(same, (start.mask == 0).expand(same.sizes()))) << parallel::LayoutText(layout);
        }
      });
    }
  }
}

// A worker that restarts gets the same StartJob again.
TEST_P(PictureLayoutTest, AJobInABatchOfOtherRulesAndAJobThatStartsAgainAreTheJobAlone) {
  runs_.BeginFromPictures(kFirstStep);
  const std::vector<at::Tensor> together = runs_.RunSerially(at::kDouble);
  runs_.OnRanks({}, at::kDouble, [&](const LayoutRuns::Rank& rank) {
    for (size_t j = 0; j < LayoutRuns::kJobs; ++j) {
      DenoiseJob begun = runs_.Job(rank.family, j), again = runs_.Job(rank.family, j);
      DenoiseJob* batch[] = {&begun};
      rank.denoiser.Step(batch);
      batch[0] = &again;
      while (!again.done()) rank.denoiser.Step(batch);
      rank.denoiser.Flush();
      EXPECT_LE(LayoutRuns::Relative(again.latents, together.back()[static_cast<int64_t>(j)]), 1e-12) << j;
      DenoiseJob once = runs_.Job(rank.family, j);
      batch[0] = &once;
      while (!once.done()) rank.denoiser.Step(batch);
      rank.denoiser.Flush();
      EXPECT_TRUE(at::equal(once.latents, again.latents)) << j;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Families, PictureLayoutTest,
                         testing::Values("flux_dev", "pixart_alpha", "qwen_image", "sd3", "z_image_base"),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(Families, LayoutTest,
                         testing::Values("dit", "flux_dev", "hunyuan11", "pixart_alpha", "flux2_klein_base",
                                         "qwen_image", "sd3", "sd35", "z_image_base"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::runtime
