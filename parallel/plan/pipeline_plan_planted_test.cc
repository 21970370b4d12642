#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/pipeline_simulator.h"
#include "tests/support/pipeline_streams.h"
#include "tests/support/planted_bug.h"

namespace tessera::parallel {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<SimulatedRun> RunOfFourStages(bool buffered) {
  const Pipeline pipeline = WithSkips(Stages(4, 4));
  const std::vector<PipeStep> stream = Jobs(1, 4, 1);
  return SimulatePipeline(pipeline, stream, PlansOf(pipeline, stream), buffered);
}

TEST(PlantedPipelineBugTest, SendingFirstOnEveryStageIsSeenAsADeadlock) {
  ASSERT_TRUE(RunOfFourStages(/*buffered=*/false).ok());
  const PlantedBug planted("pipe_all_send_first");
  EXPECT_THAT(RunOfFourStages(/*buffered=*/false).status().message(), HasSubstr("deadlock"));
}

TEST(PlantedPipelineBugTest, ASkipSentToTheWrongStageIsSeenByTheBlockThatMissesIt) {
  const PlantedBug planted("pipe_skip_to_wrong_stage");
  for (const bool buffered : {false, true}) {
    EXPECT_THAT(RunOfFourStages(buffered).status().message(), HasSubstr("was not given the skip of block"));
  }
}

TEST(PlantedPipelineBugTest, AStepThatDrainsThePipelineIsSeenInTheIdleTime) {
  const PlantedBug planted("pipe_step_drains");
  const auto run = RunOfFourStages(/*buffered=*/true);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_GT(run->end, JobTime(4, 4, 4, 1));
}

}  // namespace
}  // namespace tessera::parallel
