#include "server/workers/step_prediction.h"

#include <gtest/gtest.h>

#include "control/model/model_cost.h"
#include "control/parameters/job_parameters.h"

namespace tessera::server {
namespace {

control::ModelCost Model() { return {.token_side = 8, .flops = {.image = 2e6, .image_pair = 3650}}; }

control::JobParameters Square(int32_t side) { return {.prompt = "x", .height = side, .width = side, .steps = 2}; }

TEST(StepPredictionTest, PredictsNothingOfAModelThatIsNotKnown) {
  StepPrediction prediction;
  prediction.Place(/*on_cpu=*/true);
  prediction.Start(1, Square(512));
  EXPECT_EQ(prediction.Step({1}), absl::ZeroDuration());
}

TEST(StepPredictionTest, FollowsTheSizeTheDeviceAndTheNumberOfImages) {
  StepPrediction prediction;
  prediction.Describe(Model());
  prediction.Place(/*on_cpu=*/true);
  prediction.Start(1, Square(256));
  prediction.Start(2, Square(1024));
  const absl::Duration small = prediction.Step({1}), large = prediction.Step({2});
  EXPECT_GT(small, absl::ZeroDuration());
  EXPECT_GT(large, 16 * small) << "attention grows with the square of the tokens";
  EXPECT_NEAR(absl::ToDoubleSeconds(prediction.Step({1, 2})), absl::ToDoubleSeconds(small + large), 1e-6);
  prediction.End(2);
  EXPECT_EQ(prediction.Step({1, 2}), small);
  prediction.Place(/*on_cpu=*/false);
  EXPECT_LT(1000 * prediction.Step({1}), small);
}

TEST(StepPredictionTest, FollowsTheStepsThatWereMadeTheSlowestAtOnce) {
  StepPrediction prediction;
  prediction.Describe(Model());
  prediction.Place(/*on_cpu=*/true);
  prediction.Start(1, Square(256));
  const auto near = [&](absl::Duration expected) {
    EXPECT_NEAR(absl::ToDoubleSeconds(prediction.Step({1})), absl::ToDoubleSeconds(expected), 1e-6);
  };
  prediction.Observe({1}, absl::Seconds(2));  // replaces the assumed time
  near(absl::Seconds(2));
  prediction.Observe({1}, absl::Seconds(7));
  near(absl::Seconds(7));
  prediction.Observe({1}, absl::Seconds(2));
  near(absl::Seconds(6.5));
  prediction.Observe({1}, absl::ZeroDuration());
  near(absl::Seconds(6.5));
}

}  // namespace
}  // namespace tessera::server
