#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/planted_bug.h"
#include "tests/support/test_folder.h"
#include "tests/support/training_state.h"

namespace tessera::runtime {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

// Returns the problems of a checkpoint that tensor=2 has written and one rank reads, with that bug planted.
std::vector<std::string> ProblemsWith(const char* bug) {
  TestFolder folder;
  const PlantedBug planted(bug);
  const absl::Status written = WriteOn(Topologies()[2], folder.path());
  if (!written.ok()) return {std::string(written.message())};
  const auto found = LatestWhole(folder.path());
  if (!found.ok()) return {std::string(found.status().message())};
  return ProblemsOn(Topologies()[0], found->path);
}

TEST(PlantedCheckpointTest, WithoutABugNothingIsWrong) { EXPECT_THAT(ProblemsWith(""), IsEmpty()); }

TEST(PlantedCheckpointTest, AnOptimizerKeyThatIsDroppedIsNoticed) {
  EXPECT_THAT(ProblemsWith("checkpoint_optimizer_key_dropped"), Contains(HasSubstr("lacks tensor \"exp_avg_sq.")));
}

TEST(PlantedCheckpointTest, AStepThatIsMergedOverTheRanksIsNoticed) {
  EXPECT_THAT(ProblemsWith("checkpoint_step_merged"), Contains(HasSubstr("step 200")));
}

TEST(PlantedCheckpointTest, ASliceThatIsTransposedOnReshardingIsNoticed) {
  EXPECT_THAT(ProblemsWith("checkpoint_slice_transposed"), Contains(HasSubstr("exp_avg.q.weight differs")));
}

TEST(PlantedCheckpointTest, AnAverageOfTheShardOnlyIsNoticed) {
  EXPECT_THAT(ProblemsWith("checkpoint_average_of_the_shard"), Contains(HasSubstr("tensor \"ema.")));
}

}  // namespace
}  // namespace tessera::runtime
