#include "parallel/plan/pipeline_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/support/pipeline_simulator.h"
#include "tests/support/pipeline_streams.h"

namespace tessera::parallel {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using Kind = StageOp::Kind;

constexpr int kAll = 1000;

std::string Name(const Pipeline& pipeline, int steps, int warmup, int jobs, bool buffered) {
  return absl::StrCat(pipeline.stages(), " stages, ", pipeline.patches, " patches, ", steps, " steps, ", warmup,
                      " warm-up, ", jobs, " jobs, ", pipeline.skips.size(), " skips", buffered ? ", buffered" : "");
}

// Every shape of pipeline with every stream.
template <typename Function>
void ForEachRun(Function function) {
  const int steps = 4;
  for (int stages = 1; stages <= 8; ++stages) {
    for (int patches = 1; patches <= 8; ++patches) {
      for (const int warmup : {0, 1, 2, 3, kAll}) {
        for (int jobs = 1; jobs <= 3; ++jobs) {
          for (const bool skips : {false, true}) {
            const Pipeline pipeline = skips ? WithSkips(Stages(stages, patches)) : Stages(stages, patches);
            const std::vector<PipeStep> stream = Jobs(jobs, steps, warmup);
            const Plans plans = PlansOf(pipeline, stream);
            for (const bool buffered : {false, true}) {
              SCOPED_TRACE(Name(pipeline, steps, warmup, jobs, buffered));
              const auto run = SimulatePipeline(pipeline, stream, plans, buffered);
              function(run, pipeline, jobs * JobTime(stages, patches, steps, warmup), int64_t{jobs} * steps * patches);
              if (testing::Test::HasFailure()) return;
            }
          }
        }
      }
    }
  }
}

TEST(PipelinePlanTest, EveryPassRunsThroughEveryBlockOnceWithoutDeadlock) {
  ForEachRun([](const auto& run, const Pipeline&, int64_t, int64_t) { ASSERT_TRUE(run.ok()) << run.status(); });
}

TEST(PipelinePlanTest, StagesStandIdleOnlyAtTheStartOfAJobAndInWarmUp) {
  ForEachRun([](const auto& run, const Pipeline&, int64_t end, int64_t busy) {
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->end, end);
    EXPECT_THAT(run->idle, Each(end - busy));
  });
}

TEST(PipelinePlanTest, AFullPipelineWaitsForItsFirstPatchAndNoMore) {
  const Pipeline pipeline = WithSkips(Stages(4, 6));
  const std::vector<PipeStep> stream = Jobs(1, 50, 0);
  const auto run = SimulatePipeline(pipeline, stream, PlansOf(pipeline, stream), /*buffered=*/false);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_THAT(run->idle, Each(3));
}

TEST(PipelinePlanTest, AStageKeepsNoMoreSkipsThanThereAreStagesBetween) {
  const Pipeline pipeline = WithSkips(Stages(8, 8));
  const std::vector<PipeStep> stream = Jobs(1, 6, 1);
  const auto run = SimulatePipeline(pipeline, stream, PlansOf(pipeline, stream), /*buffered=*/true);
  ASSERT_TRUE(run.ok()) << run.status();
  for (int s = 0; s < 8; ++s) {
    int most = 0;
    std::set<int> sources;
    for (const LongSkip& skip : pipeline.skips) {
      if (pipeline.StageOf(skip.to) == s) sources.insert(pipeline.StageOf(skip.from));
    }
    for (const int source : sources) most += s - source;
    EXPECT_LE(run->most_skips_held[s], most) << s;
  }
}

TEST(PipelinePlanTest, TwoStepsInFlightKeepThePipelineFull) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int patches = stages; patches <= 8; ++patches) {
      const Pipeline pipeline = WithSkips(Stages(stages, patches));
      for (int s = 0; s < stages; ++s) {
        PipelinePlanner planner = *PipelinePlanner::Create(pipeline, s);
        std::vector<StageOp> ops;
        for (const PipeStep& step : StepsOfJob(1, 6, 2)) {
          std::ranges::move(*planner.Step(step), std::back_inserter(ops));
          const auto computed = std::ranges::count_if(
              ops, [&](const StageOp& op) { return op.kind == Kind::kCompute && op.step == step.step - 1; });
          ASSERT_EQ(computed, step.step == 0 ? 0 : step.step - 1 < 2 ? 1 : patches) << "stage " << s;
        }
      }
    }
  }
}

// Stages must complete the operations of the commands so far without the next command; otherwise a rank would wait for
// a stage that itself waits for commands.
TEST(PipelinePlanTest, BothSidesOfAMessageBelongToTheSameCommand) {
  using Ends = std::tuple<int64_t, int, int, int, int>;  // slot, stages, kind of the send, first patch
  for (int stages = 1; stages <= 8; ++stages) {
    for (int patches = 1; patches <= 8; ++patches) {
      const Pipeline pipeline = WithSkips(Stages(stages, patches));
      std::vector<PipelinePlanner> planners;
      for (int s = 0; s < stages; ++s) planners.push_back(*PipelinePlanner::Create(pipeline, s));
      for (const PipeStep& step : StepsOfJob(1, 5, 1)) {
        std::multiset<Ends> sends, receives;
        for (int s = 0; s < stages; ++s) {
          const std::vector<StageOp> ops = *planners[s].Step(step);
          for (const StageOp& op : ops) {
            const int kind = static_cast<int>(op.kind);
            switch (op.kind) {
              case Kind::kSendState:
              case Kind::kSendSkips:
              case Kind::kSendResult:
                sends.emplace(op.slot, s, op.peer, kind, op.patches.begin);
                break;
              case Kind::kReceiveState:
              case Kind::kReceiveSkips:
              case Kind::kReceiveResult:
                receives.emplace(op.slot, op.peer, s, kind - 1, op.patches.begin);
                break;
              default:
                break;
            }
          }
        }
        ASSERT_EQ(sends, receives) << Name(pipeline, 5, 1, 1, false) << ", step " << step.step;
      }
    }
  }
}

TEST(PipelinePlanTest, AWarmUpStepLeavesNothingForLater) {
  const Pipeline pipeline = WithSkips(Stages(4, 4));
  for (int s = 0; s < 4; ++s) {
    PipelinePlanner planner = *PipelinePlanner::Create(pipeline, s);
    for (const PipeStep& step : StepsOfJob(1, 3, 3)) {
      const auto ops = *planner.Step(step);
      EXPECT_EQ(std::ranges::count(ops, Kind::kCompute, &StageOp::kind), 1);
    }
    EXPECT_EQ(planner.Flush().size(), 1u);
  }
}

TEST(PipelinePlanTest, StepsWithABarrierStartAfterTheWholePredictionIsKnown) {
  for (const int stages : {1, 2, 5}) {
    const Pipeline pipeline = WithSkips(Stages(stages, 6));
    std::vector<PipeStep> stream = Jobs(2, 4, 1);
    for (PipeStep& step : stream) step.barrier = true;
    const Plans plans = PlansOf(pipeline, stream);
    const auto run = SimulatePipeline(pipeline, stream, plans, /*buffered=*/false);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->end, 2 * (stages * 6 + 3 * (6 + stages - 1)));
    for (const auto& plan : plans) EXPECT_EQ(std::ranges::count(plan, Kind::kBarrier, &StageOp::kind), 8);
  }
}

TEST(PipelinePlanTest, TextRunsOnceAStep) {
  for (const auto& plan : PlansOf(Stages(3, 4), Jobs(1, 5, 2))) {
    for (int step = 0; step < 5; ++step) {
      EXPECT_EQ(std::ranges::count_if(plan,
                                      [&](const StageOp& op) {
                                        return op.kind == Kind::kCompute && op.step == step && op.patches.with_text();
                                      }),
                1);
    }
  }
}

TEST(PipelinePlanTest, OneStageHasNoMessages) {
  const std::vector<StageOp> plan = *PipeFusionPlan(WithSkips(Stages(1, 4)), 0, Jobs(1, 3, 1));
  EXPECT_EQ(std::ranges::count(plan, Kind::kCompute, &StageOp::kind), 9);
  EXPECT_EQ(plan.size(), 10u);
}

TEST(PipelinePlanTest, AJobStartsAfterAFlushOnly) {
  PipelinePlanner planner = *PipelinePlanner::Create(Stages(2, 2), 0);
  ASSERT_TRUE(planner.Step({.job = 1, .step = 0}).ok());
  EXPECT_THAT(planner.Step({.job = 2, .step = 0}).status().message(),
              HasSubstr("step 0 of job 2 cannot follow step 0 of job 1 without a flush"));
  EXPECT_FALSE(planner.Step({.job = 1, .step = 2}).ok());
  planner.Flush();
  EXPECT_TRUE(planner.Step({.job = 2, .step = 5}).ok());
}

TEST(PipelinePlanTest, AFlushWithNothingUnderWayIsOnlyThat) {
  PipelinePlanner planner = *PipelinePlanner::Create(WithSkips(Stages(3, 4)), 2);
  for (int i = 0; i < 2; ++i) {
    const std::vector<StageOp> ops = planner.Flush();
    ASSERT_EQ(ops.size(), 1u);
    EXPECT_EQ(ops[0].kind, Kind::kFlush);
  }
}

TEST(PipelinePlanTest, RefusesPipelinesThatAreNone) {
  EXPECT_THAT(PipelinePlanner::Create({.bounds = {0}}, 0).status().message(), HasSubstr("one stage at least"));
  EXPECT_THAT(PipelinePlanner::Create({.bounds = {0, 2, 2}}, 0).status().message(), HasSubstr("stage 1 has no block"));
  EXPECT_FALSE(PipelinePlanner::Create({.bounds = {1, 2}}, 0).ok());
  EXPECT_FALSE(PipelinePlanner::Create({.bounds = {0, 2}, .patches = 0}, 0).ok());
  EXPECT_THAT(PipelinePlanner::Create({.bounds = {0, 2}}, 1).status().message(),
              HasSubstr("stage is 1; valid values are 0 to 0"));
  for (const LongSkip skip : {LongSkip{0, 2}, LongSkip{1, 1}, LongSkip{-1, 1}, LongSkip{1, 0}}) {
    EXPECT_THAT(PipelinePlanner::Create({.bounds = {0, 2}, .skips = {skip}}, 0).status().message(),
                HasSubstr("a skip leads from"));
  }
}

// A simulator that never fails proves nothing: it runs a correct plan with one operation spoiled, for each operation.
template <typename Spoil>
void ExpectEveryOperationMatters(Spoil spoil) {
  const Pipeline pipeline = WithSkips(Stages(3, 4));
  const std::vector<PipeStep> stream = Jobs(1, 4, 1);
  const Plans plans = PlansOf(pipeline, stream);
  for (size_t s = 0; s < plans.size(); ++s) {
    for (size_t i = 0; i < plans[s].size(); ++i) {
      Plans spoiled = plans;
      if (!spoil(spoiled[s], i)) continue;
      for (const bool buffered : {false, true}) {
        EXPECT_FALSE(SimulatePipeline(pipeline, stream, spoiled, buffered).ok())
            << "stage " << s << ", operation " << i << (buffered ? ", buffered" : "");
      }
    }
  }
}

TEST(PipelineSimulatorTest, NoticesAnyOperationThatIsLeftOut) {
  ExpectEveryOperationMatters([](std::vector<StageOp>& plan, size_t i) {
    plan.erase(plan.begin() + static_cast<int64_t>(i));
    return true;
  });
}

TEST(PipelineSimulatorTest, NoticesAnyOperationThatIsDoneTwice) {
  ExpectEveryOperationMatters([](std::vector<StageOp>& plan, size_t i) {
    const StageOp op = plan[i];
    if (op.kind == Kind::kFlush) return false;
    plan.insert(plan.begin() + static_cast<int64_t>(i), op);
    return true;
  });
}

TEST(PipelineSimulatorTest, NoticesAnyMessageWithTheWrongStage) {
  ExpectEveryOperationMatters([](std::vector<StageOp>& plan, size_t i) {
    if (plan[i].peer < 0) return false;
    plan[i].peer = (plan[i].peer + 1) % 3;
    return true;
  });
}

TEST(PipelineSimulatorTest, NoticesAnyOperationOnTheWrongPatch) {
  ExpectEveryOperationMatters([](std::vector<StageOp>& plan, size_t i) {
    if (plan[i].kind == Kind::kFlush) return false;
    plan[i].patches = {(plan[i].patches.begin + 1) % 4, (plan[i].patches.begin + 1) % 4 + 1};
    return true;
  });
}

TEST(PipelineSimulatorTest, NamesWhoWaitsForWhatInADeadlock) {
  const Pipeline pipeline = Stages(2, 2);
  const std::vector<PipeStep> stream = Jobs(1, 3, 0);
  Plans plans = PlansOf(pipeline, stream);
  // Both stages send before they receive.
  const auto pair = std::ranges::adjacent_find(plans[1], [](const StageOp& a, const StageOp& b) {
    return a.kind == Kind::kReceiveState && b.kind == Kind::kSendResult;
  });
  ASSERT_NE(pair, plans[1].end());
  std::iter_swap(pair, pair + 1);
  EXPECT_TRUE(SimulatePipeline(pipeline, stream, plans, /*buffered=*/true).ok());
  EXPECT_EQ(SimulatePipeline(pipeline, stream, plans, /*buffered=*/false).status().message(),
            "deadlock: stage 0: send state of job 7 step 0 patches 1-2 with stage 1; "
            "stage 1: send result of job 7 step 0 patches 0-1 with stage 0");
}

}  // namespace
}  // namespace tessera::parallel
