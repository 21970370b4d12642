// Tests PipeFusion's stale steps: an emulation without a pipeline defines their results, which never depend on the
// other jobs served, on when latents were requested, or on the timing of commands.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/support/pipefusion_runs.h"

namespace tessera::runtime {
namespace {

constexpr int kSteps = PipeFusionRuns::kSteps;
using Rank = LayoutRuns::Rank;

class PipeFusionTest : public testing::TestWithParam<const char*> {
 protected:
  PipeFusionRuns runs_{GetParam()};
};

TEST_P(PipeFusionTest, StaleStepsAreTheEmulationBitForBit) {
  const at::Tensor serial = runs_.Run({});
  const std::vector<parallel::Layout> layouts =
      runs_.Valid({"patches=3,warmup=1", "pipe=2,patches=2,warmup=1", "pipe=2,patches=5,warmup=2",
                   "pipe=3,patches=4,warmup=1", "pipe=4,patches=5,warmup=1",
                   // More patches than tokens.
                   "pipe=2,patches=20,warmup=1"});
  EXPECT_GE(layouts.size(), 4u);
  for (const parallel::Layout& layout : layouts) {
    const at::Tensor stale = runs_.Run(layout);
    EXPECT_TRUE(at::equal(stale, runs_.Emulate(layout))) << parallel::LayoutText(layout);
    std::printf("%s %s: drift from one rank %.1e\n", GetParam(), parallel::LayoutText(layout).c_str(),
                LayoutRuns::Relative(stale, serial));
  }
}

// Warm-up counts the steps that are run, not those of the schedule.
TEST_P(PipeFusionTest, StaleStepsOfJobsThatBeginFromPicturesAreTheEmulationBitForBit) {
  runs_.BeginFromPictures(2);
  for (const parallel::Layout& layout :
       runs_.Valid({"patches=3,warmup=1", "pipe=2,patches=5,warmup=2", "pipe=2,patches=3,warmup=3"})) {
    EXPECT_TRUE(at::equal(runs_.Run(layout), runs_.Emulate(layout))) << parallel::LayoutText(layout);
  }
  const parallel::Layout rescaled = *parallel::ParseLayout("pipe=2,patches=3,warmup=1");
  EXPECT_TRUE(at::equal(runs_.Run(rescaled, 0.5), runs_.Emulate(rescaled, 0.5)));  // over the whole image
}

// References are computed with the first patch of every step.
TEST(PipeFusionReferencesTest, StaleStepsAreTheEmulationBitForBit) {
  PipeFusionRuns runs("flux_dev");
  runs.LookAtPictures();
  for (const parallel::Layout& layout :
       runs.Valid({"patches=3,warmup=1", "pipe=2,patches=2,warmup=1", "pipe=3,patches=4,warmup=1"})) {
    EXPECT_TRUE(at::equal(runs.Run(layout), runs.Emulate(layout))) << parallel::LayoutText(layout);
  }
  for (const parallel::Layout& layout :
       runs.Valid({"pipe=2,ulysses=2,patches=2,warmup=1", "ring=3,patches=2,warmup=1"})) {
    EXPECT_LE(LayoutRuns::Relative(runs.Run(layout), runs.Emulate(layout)), 1e-12) << parallel::LayoutText(layout);
  }
}

TEST_P(PipeFusionTest, OtherAxesInsideAndAroundStagesChangeOnlyRounding) {
  const std::vector<parallel::Layout> layouts = runs_.Valid(
      {"cfg=2,patches=2,warmup=1", "ulysses=2,patches=4,warmup=1", "ring=3,patches=2,warmup=1",
       "cfg=2,pipe=2,patches=3,warmup=1", "pipe=2,ulysses=2,patches=2,warmup=1", "pipe=2,ring=2,patches=3,warmup=1",
       "pipe=2,tensor=2,patches=4,warmup=2", "pipe=2,ring=2,ulysses=2,patches=3,warmup=1"});
  EXPECT_GE(layouts.size(), 8u);
  for (const parallel::Layout& layout : layouts) {
    EXPECT_LE(LayoutRuns::Relative(runs_.Run(layout), runs_.Emulate(layout)), 1e-12) << parallel::LayoutText(layout);
  }
}

TEST_P(PipeFusionTest, ARequestAfterAnotherIsTheRequestAlone) {
  for (const parallel::Layout& layout : runs_.Valid({"pipe=2,patches=3,warmup=1", "pipe=2,ulysses=2,patches=2,warmup=2",
                                                     "pipe=2,patches=3,warmup=3", "pipe=2"})) {
    const auto second = [&](const Rank& rank) {
      DenoiseJob job = runs_.Job(rank.family, 1, kSteps);
      DenoiseJob* batch[] = {&job};
      while (!job.done()) rank.denoiser.Step(batch);
      rank.denoiser.Flush();
      return job.latents;
    };
    const at::Tensor alone = runs_.Same(layout, second);
    const at::Tensor after = runs_.Same(layout, [&](const Rank& rank) {
      DenoiseJob first = runs_.Job(rank.family, 0, kSteps);
      DenoiseJob* batch[] = {&first};
      while (!first.done()) rank.denoiser.Step(batch);
      return second(rank);
    });
    EXPECT_TRUE(at::equal(after, alone)) << parallel::LayoutText(layout);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PipeFusionTest,
                         testing::Values("dit", "flux_dev", "hunyuan11", "pixart_alpha", "flux2_klein_base",
                                         "qwen_image", "sd3", "sd35", "z_image_base"),
                         [](const auto& info) { return info.param; });

TEST(PipeFusionJobsTest, AskingForLatentsBetweenStepsChangesNoBit) {
  const PipeFusionRuns runs("hunyuan11");
  const parallel::Layout layout = *parallel::ParseLayout("pipe=3,patches=4,warmup=1");
  const at::Tensor asked = runs.Same(layout, [&](const Rank& rank) {
    std::vector<DenoiseJob> jobs = runs.Jobs(rank.family, kSteps);
    for (int step = 0; step < kSteps; ++step) {
      rank.denoiser.Step(LayoutRuns::Batch(jobs));
      rank.denoiser.Flush();
    }
    return LayoutRuns::Latents(jobs);
  });
  EXPECT_TRUE(at::equal(asked, runs.Run(layout)));
}

TEST(PipeFusionJobsTest, WhatRunsBetweenAJobsStepsDoesNotReachIt) {
  const PipeFusionRuns runs("sd3");
  const parallel::Layout layout = *parallel::ParseLayout("pipe=2,patches=3,warmup=1");
  const at::Tensor around = runs.RunAround(layout, 1);  // it has other branches
  EXPECT_TRUE(at::equal(runs.RunAround(layout, 2), around));
  EXPECT_TRUE(at::equal(runs.RunAround(layout, 3), around));
}

TEST(PipeFusionJobsTest, OnlyAJobThatHadStepsByPatchIsNotExact) {
  const PipeFusionRuns runs("dit");
  const auto exact = [&](const char* layout, int steps) {
    return runs
        .Same(*parallel::ParseLayout(layout),
              [&](const Rank& rank) {
                DenoiseJob job = runs.Job(rank.family, 0, steps);
                DenoiseJob* batch[] = {&job};
                while (!job.done()) rank.denoiser.Step(batch);
                return at::scalar_tensor(job.all_whole ? 1 : 0);
              })
        .item<double>();
  };
  EXPECT_EQ(exact("pipe=2", 3), 1);
  EXPECT_EQ(exact("pipe=2,patches=2", 3), 1);
  EXPECT_EQ(exact("pipe=2,patches=2,warmup=3", 3), 1);
  EXPECT_EQ(exact("pipe=2,patches=2,warmup=2", 3), 0);
}

// Guidance rescale and thresholding are computed over the image, so the stages wait for all of it.
TEST(PipeFusionJobsTest, ImageWideStatisticsAreThoseOfTheWholeImage) {
  PipeFusionRuns runs("hunyuan11");
  const parallel::Layout stale = *parallel::ParseLayout("pipe=2,patches=3,warmup=1"),
                         whole = *parallel::ParseLayout("pipe=2,patches=3,warmup=9");
  EXPECT_TRUE(at::equal(runs.Run(stale, /*rescale=*/0.7), runs.Emulate(stale, 0.7)));
  EXPECT_LE(LayoutRuns::Relative(runs.Run(whole, 0.7), runs.Run({}, 0.7)), 1e-12);
  runs.sampler().Find<Thresholding>()->thresholding = true;
  EXPECT_TRUE(at::equal(runs.Run(stale), runs.Emulate(stale)));
  EXPECT_LE(LayoutRuns::Relative(runs.Run(whole), runs.Run({})), 1e-12);
}

// The history of a multistep sampler is cut and joined together with the latents.
TEST(PipeFusionJobsTest, AMultistepSamplerGoesOnWhereItWas) {
  PipeFusionRuns runs("pixart_alpha");
  runs.sampler() = *WithSampler(runs.sampler(), "dpm++2");
  const parallel::Layout layout = *parallel::ParseLayout("pipe=2,patches=3,warmup=9");
  const at::Tensor serial = runs.RunAround({}, 1);
  EXPECT_LE(LayoutRuns::Relative(runs.RunAround(layout, 1), serial), 1e-12);
}

// Runs jobs that join, leave and are cancelled. With `in_lock_step` no rank gets a command before all have completed
// the last one.
at::Tensor RunManyJobs(const PipeFusionRuns& runs, const parallel::Layout& layout, bool in_lock_step) {
  return runs.Same(layout, [&](const Rank& rank) {
    const auto step = [&](std::vector<DenoiseJob*> batch, int steps) {
      for (int i = 0; i < steps; ++i) {
        rank.denoiser.Step(batch);
        if (in_lock_step) rank.world.Barrier();
      }
    };
    DenoiseJob a = runs.Job(rank.family, 0, 8), b = runs.Job(rank.family, 1, 8);
    auto c = std::make_unique<DenoiseJob>(runs.Job(rank.family, 2, 8));
    step({&a}, 3);
    step({&a, &b}, 2);
    step({c.get()}, 1);
    step({&b}, 2);
    step({&a, c.get()}, 2);
    rank.denoiser.Flush();
    c.reset();  // cancelled
    if (in_lock_step) rank.world.Barrier();
    step({&a}, 1);
    step({&b}, 4);
    rank.denoiser.Flush();
    EXPECT_TRUE(a.done() && b.done());
    return at::stack({a.latents, b.latents});
  });
}

TEST(PipeFusionJobsTest, NoRankWaitsForACommandThatIsStillToCome) {
  const PipeFusionRuns runs("hunyuan11");
  for (const char* text : {"pipe=2,patches=2,warmup=1", "pipe=4,patches=4,warmup=2", "pipe=4,patches=7,warmup=1",
                           "cfg=2,pipe=2,ring=2,patches=3,warmup=1"}) {
    const parallel::Layout layout = *parallel::ParseLayout(text);
    EXPECT_TRUE(at::equal(RunManyJobs(runs, layout, true), RunManyJobs(runs, layout, false))) << text;
  }
}

TEST(PipeFusionJobsTest, LatentsThatStopBeingFiniteAreAnErrorAndOthersGoOn) {
  const PipeFusionRuns runs("dit");
  const parallel::Layout layout = *parallel::ParseLayout("pipe=2,patches=2,warmup=1");
  const auto good = [&](const Rank& rank, bool after_bad) {
    DenoiseJob bad = runs.Job(rank.family, 1, kSteps), job = runs.Job(rank.family, 0, kSteps);
    DenoiseJob *spoiled[] = {&bad}, *batch[] = {&job};
    if (after_bad) {
      bad.latents[0][0][0] = std::numeric_limits<double>::quiet_NaN();
      rank.denoiser.Step(spoiled);
      EXPECT_EQ(IsFinite(bad), rank.groups.pipe.rank() > 0);  // the first stage has the latents
      rank.denoiser.Flush();
      EXPECT_FALSE(IsFinite(bad));
    }
    while (!job.done()) rank.denoiser.Step(batch);
    rank.denoiser.Flush();
    EXPECT_TRUE(IsFinite(job));
    return job.latents;
  };
  EXPECT_TRUE(at::equal(runs.Same(layout, [&](const Rank& rank) { return good(rank, true); }),
                        runs.Same(layout, [&](const Rank& rank) { return good(rank, false); })));
}

}  // namespace
}  // namespace tessera::runtime
