#include "server/workers/step_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "control/parameters/job_parameters.h"
#include "tests/support/scripted_step_loop.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;

class NoProof final : public BatchProof {
 public:
  bool IsProven(const control::JobStarted&, size_t) const override { return false; }
  absl::StatusOr<bool> Prove(const std::vector<TaskId>&, const control::JobStarted&) override { return false; }
};

// Two jobs may share a batch; more are not proven.
class ProofOfTwo final : public BatchProof {
 public:
  bool IsProven(const control::JobStarted&, size_t tasks) const override { return tasks == 2; }
  absl::StatusOr<bool> Prove(const std::vector<TaskId>&, const control::JobStarted&) override { return true; }
};

TEST(StepLoopTest, APreviewIsOfItsOwnStep) { EXPECT_TRUE(APreviewIsOfItsOwnStep()); }

TEST(StepLoopTest, KeepsTwoStepsUnansweredAndDecodesAfterTheLast) {
  ScriptedStepLoop loop;
  ASSERT_TRUE(loop.Run({{.start = {1}}, {.step = {1}}, {.step = {1}}, {.step = {1}, .decode = {1}}}).ok());
  EXPECT_THAT(loop.workers.asked, ElementsAre("start 1", "started 1", "send 1", "send 1", "wait 1", "send 1",
                                              "decode 1 after 3", "wait 2", "wait 3", "wait 4", "end 1", "ended 1"));
  EXPECT_THAT(loop.owner.heard,
              ElementsAre("started 1", "stepped 1", "stepped 1", "stepped 1", "decoded 1", "ended 1", "idle"));
}

TEST(StepLoopTest, TheNextImagesAreSteppedWhileAPictureIsMade) {
  ScriptedStepLoop loop;
  loop.workers.slow_pictures = true;
  ASSERT_TRUE(
      loop.Run({{.start = {1}}, {.step = {1}, .decode = {1}}, {.start = {2}}, {.step = {2}}, {.step = {2}}}).ok());
  EXPECT_THAT(loop.workers.asked,
              ElementsAre("start 1", "started 1", "send 1", "decode 1 after 1", "start 2", "started 2", "send 2",
                          "wait 1", "send 2", "wait 3", "wait 4", "wait 2", "end 1", "ended 1"));
  EXPECT_THAT(loop.owner.heard, ElementsAre("started 1", "started 2", "stepped 1", "stepped 2", "stepped 2",
                                            "decoded 1", "ended 1", "idle"));
}

TEST(StepLoopTest, NothingWaitsForTheEndOfAJob) {
  ScriptedStepLoop loop;
  ASSERT_TRUE(
      loop.Run({{.start = {1}}, {.step = {1}, .decode = {1}}, {.start = {2}}, {.step = {2}}, {}, {.step = {2}}}).ok());
  EXPECT_THAT(loop.workers.asked,
              ElementsAre("start 1", "started 1", "send 1", "decode 1 after 1", "start 2", "started 2", "send 2",
                          "wait 1", "wait 2", "end 1", "send 2", "wait 3", "wait 4", "ended 1"));
}

TEST(StepLoopTest, OfAllThatIsAnsweredTheLastStepsComeFirst) {
  ScriptedStepLoop loop;
  loop.workers.all_answered = true;
  ASSERT_TRUE(loop.Run({{.start = {1}}, {.step = {1}, .decode = {1}}, {.start = {2}}, {.step = {2}}}).ok());
  EXPECT_THAT(loop.workers.asked, ElementsAre("start 1", "started 1", "send 1", "decode 1 after 1", "start 2",
                                              "started 2", "send 2", "wait 1", "wait 3", "wait 2", "end 1", "ended 1"));
}

TEST(StepLoopTest, APictureWaitsForNoStepsWhileTheWorkersHaveOthers) {
  ScriptedStepLoop loop;
  loop.workers.all_answered = true;
  ASSERT_TRUE(
      loop.Run({{.start = {1}}, {.step = {1}, .decode = {1}}, {.start = {2}}, {.step = {2}}, {.step = {2}}}).ok());
  EXPECT_THAT(loop.workers.asked,
              ElementsAre("start 1", "started 1", "send 1", "decode 1 after 1", "start 2", "started 2", "send 2",
                          "wait 1", "send 2", "wait 2", "end 1", "wait 3", "wait 4", "ended 1"));
}

TEST(StepLoopTest, JobsThatStartTogetherAreSentTogether) {
  ScriptedStepLoop loop;
  loop.workers.failing_start = 2;
  ASSERT_TRUE(loop.Run({{.start = {1, 2, 3}}}).ok());
  EXPECT_THAT(loop.workers.asked, ElementsAre("start 1", "start 2", "start 3", "started 1", "started 2", "started 3"));
  EXPECT_THAT(loop.owner.heard, ElementsAre("started 1", "failed 2", "ended 2", "started 3", "idle"));
}

TEST(StepLoopTest, OfManyJobsThatStartTogetherFewAreUnanswered) {
  std::vector<TaskId> many(1000);
  std::iota(many.begin(), many.end(), 1);
  ScriptedStepLoop loop;
  ASSERT_TRUE(loop.Run({{.start = many}}).ok());
  int unanswered = 0, most = 0;
  for (const std::string& asked : loop.workers.asked) {
    unanswered += asked.starts_with("start ") ? 1 : -1;
    most = std::max(most, unanswered);
  }
  EXPECT_EQ(unanswered, 0);
  EXPECT_EQ(most, 16);
}

TEST(StepLoopTest, AWorkerThatIsGoneWhileJobsStartEndsTheLoop) {
  ScriptedStepLoop loop;
  loop.workers.failing_start = 2;
  loop.workers.start_error = absl::UnavailableError("the worker is gone");
  EXPECT_EQ(loop.Run({{.start = {1, 2, 3}}}), loop.workers.start_error);
  EXPECT_THAT(loop.owner.heard, ElementsAre("started 1"));
}

TEST(StepLoopTest, FinishedStepsLeaveNothingUnanswered) {
  ScriptedStepLoop loop;
  loop.owner.plans = {{.start = {1}}, {.step = {1}}, {.end = {1}}};
  for (int turn = 0; turn < 3; ++turn) ASSERT_TRUE(loop.loop.Turn().ok());
  ASSERT_TRUE(loop.loop.FinishSteps().ok());
  EXPECT_THAT(loop.workers.asked, ElementsAre("start 1", "started 1", "send 1", "end 1", "wait 1", "ended 1"));
}

TEST(StepLoopTest, ThePictureOfAStepThatFailedBelongsToNoTask) {
  ScriptedStepLoop loop;
  loop.workers.failing_step = 1;
  ASSERT_TRUE(loop.Run({{.start = {1}}, {.step = {1}, .decode = {1}}}).ok());
  EXPECT_THAT(loop.workers.asked, ElementsAre("start 1", "started 1", "send 1", "decode 1 after 1", "wait 1", "wait 2",
                                              "end 1", "ended 1"));
  EXPECT_THAT(loop.owner.heard, ElementsAre("started 1", "stepped ", "failed 1", "ended 1", "idle"));
}

// The number of prompts that the workers have encoded ahead determines whether they are asked again.
std::vector<std::string> AskedWithPromptsAhead(int32_t encoded) {
  ScriptedStepLoop loop({.next_prompts = [] { return std::vector<control::JobParameters>(5); }});
  loop.workers.prompts_encoded = encoded;
  loop.owner.plans = {{.start = {1}}, {.start = {2}}};
  for (int turn = 0; turn < 2; ++turn) EXPECT_TRUE(loop.loop.Turn().ok());
  return loop.workers.asked;
}

TEST(StepLoopTest, PromptsAreEncodedAheadWhereOneWasNot) {
  EXPECT_THAT(AskedWithPromptsAhead(5),
              ElementsAre("start 1", "started 1", "encode 5", "start 2", "started 2", "encode 5"));
}

TEST(StepLoopTest, NoPromptsAreEncodedAheadForACacheThatHoldsOne) {
  EXPECT_THAT(AskedWithPromptsAhead(1), ElementsAre("start 1", "started 1", "encode 5", "start 2", "started 2"));
}

TEST(StepLoopTest, AJobThatIsRefusedFailsAlone) {
  ScriptedStepLoop loop;
  loop.workers.failing_start = 1;
  ASSERT_TRUE(loop.Run({{.start = {1, 2}}, {.step = {1, 2}, .decode = {2}}}).ok());
  EXPECT_THAT(loop.owner.heard,
              ElementsAre("failed 1", "ended 1", "started 2", "stepped 2", "decoded 2", "ended 2", "idle"));
}

TEST(StepLoopTest, AStepOfSeveralThatFailsEndsAllOfThem) {
  ScriptedStepLoop loop;
  loop.workers.failing_step = 1;
  ASSERT_TRUE(loop.Run({{.start = {1, 2}}, {.step = {1, 2}}}).ok());
  EXPECT_THAT(loop.owner.heard,
              ElementsAre("started 1", "started 2", "stepped ", "batch failed 1+2", "ended 1", "ended 2", "idle"));
}

TEST(StepLoopTest, WhoIsLeftOfABatchThatFailedIsNotToBlame) {
  ScriptedStepLoop loop;
  loop.workers.failing_step = 1;
  ASSERT_TRUE(loop.Run({{.start = {1, 2}}, {.step = {1, 2}}, {.end = {1}}}).ok());
  EXPECT_THAT(loop.owner.heard,
              ElementsAre("started 1", "started 2", "ended 1", "stepped ", "batch failed 2", "ended 2", "idle"));
}

TEST(StepLoopTest, AStepWhoseImageWasEndedMeanwhileFailsNoTask) {
  ScriptedStepLoop loop;
  loop.workers.failing_step = 1;
  ASSERT_TRUE(loop.Run({{.start = {1}}, {.step = {1}}, {.end = {1}}}).ok());
  EXPECT_THAT(loop.owner.heard, ElementsAre("started 1", "ended 1", "stepped ", "idle"));
}

TEST(StepLoopTest, AWorkerThatIsGoneEndsTheLoop) {
  ScriptedStepLoop loop;
  loop.workers.failing_step = 1;
  loop.workers.step_error = absl::UnavailableError("the worker is gone");
  EXPECT_EQ(loop.Run({{.start = {1}}, {.step = {1}}}), loop.workers.step_error);
  EXPECT_THAT(loop.owner.heard, ElementsAre("started 1"));
}

TEST(StepLoopTest, AWorkerThatCountsOtherStepsIsOfNoMoreUse) {
  ScriptedStepLoop loop;
  loop.workers.extra_steps = 1;
  EXPECT_EQ(loop.Run({{.start = {1}}, {.step = {1}}}).message(), "the worker reports step 2 after step 0");
}

TEST(StepLoopTest, StepsOfOnePlanAreOneCommandAndEachIsHeardOf) {
  ScriptedStepLoop loop;
  ASSERT_TRUE(loop.Run({{.start = {1, 2}}, {.step = {1, 2}, .steps = 3, .decode = {1}}}).ok());
  EXPECT_THAT(loop.workers.asked, ElementsAre("start 1", "start 2", "started 1", "started 2", "send 1+2 x3",
                                              "decode 1 after 3", "wait 1", "wait 2", "end 1", "ended 1"));
  EXPECT_THAT(loop.owner.heard, ElementsAre("started 1", "started 2", "stepped 1+2", "stepped 1+2", "stepped 1+2",
                                            "decoded 1", "ended 1", "idle"));
}

TEST(StepLoopTest, APreviewDividesTheStepsOfAPlan) {
  ScriptedStepLoop loop;
  loop.owner.preview_after = {2, 3};
  ASSERT_TRUE(loop.Run({{.start = {1}}, {.step = {1}, .steps = 5, .decode = {1}}}).ok());
  EXPECT_THAT(loop.workers.asked, ElementsAre("start 1", "started 1", "send 1 x2", "wait 1", "decode 1 after 2",
                                              "wait 2", "send 1", "wait 3", "decode 1 after 3", "wait 4", "send 1 x2",
                                              "decode 1 after 5", "wait 5", "wait 6", "end 1", "ended 1"));
}

TEST(StepLoopTest, AllStepsOfAPlanAreReportedWhenItsTasksHaveFailed) {
  ScriptedStepLoop loop;
  loop.workers.failing_step = 1;
  loop.owner.preview_after = {2};
  ASSERT_TRUE(loop.Run({{.start = {1}}, {.step = {1}, .steps = 4, .decode = {1}}}).ok());
  EXPECT_THAT(loop.workers.asked, ElementsAre("start 1", "started 1", "send 1 x2", "wait 1", "end 1", "ended 1"));
  EXPECT_THAT(loop.owner.heard,
              ElementsAre("started 1", "stepped ", "stepped ", "failed 1", "ended 1", "stepped ", "stepped ", "idle"));
}

TEST(StepLoopTest, AWorkerThatMakesAPictureOfFewerStepsIsOfNoMoreUse) {
  for (const std::vector<int32_t>& preview_after : {std::vector<int32_t>(), std::vector<int32_t>{2}}) {
    ScriptedStepLoop loop;
    loop.workers.steps_not_in_pictures = 1;
    loop.owner.preview_after = preview_after;
    EXPECT_EQ(loop.Run({{.start = {1}}, {.step = {1}}, {.step = {1}}, {.step = {1}, .decode = {1}}}).message(),
              preview_after.empty() ? "the worker made the picture of 2 steps and not of 3"
                                    : "the worker made the picture of 1 steps and not of 2");
    EXPECT_THAT(loop.owner.heard,
                ::testing::Not(::testing::AnyOf(::testing::Contains("decoded 1"), ::testing::Contains("preview 1"))));
  }
}

TEST(StepLoopTest, AWorkerThatMakesFewerStepsIsOfNoMoreUse) {
  ScriptedStepLoop loop;
  loop.workers.lost_steps = 1;
  EXPECT_EQ(loop.Run({{.start = {1}}, {.step = {1}, .steps = 3}}).message(), "the worker reports 2 steps of 3");
}

TEST(StepLoopTest, ImagesThatChangeEachOtherAreSteppedOneByOne) {
  NoProof proof;
  ScriptedStepLoop loop({.proof = &proof});
  loop.owner.plans = {{.start = {1, 2}}, {.step = {1, 2}, .decode = {1, 2}}};
  for (int turn = 0; turn < 4; ++turn) ASSERT_TRUE(loop.loop.Turn().ok());
  EXPECT_THAT(loop.workers.asked,
              ElementsAre("start 1", "start 2", "started 1", "started 2", "send 1", "wait 1", "send 2", "wait 2",
                          "decode 1 after 1", "decode 2 after 1", "wait 3", "end 1", "wait 4", "end 2"));
  EXPECT_THAT(loop.owner.heard, ElementsAre("started 1", "started 2", "differs", "stepped 1+2", "decoded 1", "ended 1",
                                            "decoded 2", "ended 2"));
}

// The first image fails while two others join it. The step planned for all three then has two, which may share a batch.
TEST(StepLoopTest, WhoIsLeftOfABatchIsAnotherBatch) {
  ProofOfTwo proof;
  ScriptedStepLoop loop({.proof = &proof});
  loop.workers.failing_step = 2;
  loop.owner.plans = {{.start = {1}},    {.step = {1}},       {.step = {1}},
                      {.start = {2, 3}}, {.step = {1, 2, 3}}, {.step = {2, 3}, .decode = {2, 3}}};
  for (int turn = 0; turn < 9; ++turn) ASSERT_TRUE(loop.loop.Turn().ok());
  EXPECT_THAT(loop.workers.asked,
              ElementsAre("start 1", "started 1", "send 1", "send 1", "wait 1", "start 2", "start 3", "started 2",
                          "started 3", "wait 2", "end 1", "ended 1", "send 2+3", "send 2+3", "decode 2 after 2",
                          "decode 3 after 2", "wait 3", "wait 4", "wait 5", "end 2", "wait 6", "end 3"));
}

// This includes steps of the next plan, which may contain the last step of an image and its decode.
TEST(StepLoopTest, NothingIsSentWhileImagesAreSteppedOneByOne) {
  NoProof proof;
  ScriptedStepLoop loop({.proof = &proof});
  loop.owner.plans = {{.start = {1, 2}}, {.step = {1, 2}}, {.step = {2}, .decode = {2}}};
  for (int turn = 0; turn < 5; ++turn) ASSERT_TRUE(loop.loop.Turn().ok());
  EXPECT_THAT(loop.workers.asked,
              ElementsAre("start 1", "start 2", "started 1", "started 2", "send 1", "wait 1", "send 2", "wait 2",
                          "send 2", "decode 2 after 2", "wait 3", "wait 4", "end 2"));
}

TEST(StepLoopTest, StepsOfImagesThatChangeEachOtherAreNoOneCommand) {
  NoProof proof;
  ScriptedStepLoop loop({.proof = &proof});
  loop.owner.plans = {{.start = {1, 2}}, {.step = {1, 2}, .steps = 2}};
  for (int turn = 0; turn < 3; ++turn) ASSERT_TRUE(loop.loop.Turn().ok());
  EXPECT_THAT(loop.workers.asked, ElementsAre("start 1", "start 2", "started 1", "started 2", "send 1", "wait 1",
                                              "send 2", "wait 2", "send 1", "wait 3", "send 2", "wait 4"));
}

}  // namespace
}  // namespace tessera::server
