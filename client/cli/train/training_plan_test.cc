#include "client/cli/train/training_plan.h"

#include <gtest/gtest.h>

#include "control/model/model_description.h"

namespace tessera::client {
namespace {

// Returns a model of two blocks of 3 and 5 GFLOP at 64x64, with tokens of 8 x 8 pixels.
control::ModelDescription Model() {
  control::ModelDescription model;
  model.default_height = model.default_width = 64;
  model.transformer.exchange.width = 48;
  model.transformer.exchange.blocks.assign(2, {.kind = parallel::BlockKind::kImage});
  model.transformer.block_flops = {3e9, 5e9};
  model.cost.token_side = 8;
  model.cost.flops.image = 8e9 / 64;
  return model;
}

control::TrainingSet Set() {
  control::TrainingSet set;
  set.buckets = {{.width = 128, .height = 64}, {.width = 64, .height = 64}};
  set.samples.resize(1);
  return set;
}

control::TrainConfig Config() {
  control::TrainConfig config;
  config.network.type = control::NetworkType::kFull;
  config.train.batch_size = 4;
  config.train.gradient_checkpointing = false;
  return config;
}

// Computed by hand: 8 GFLOP, times 2 for the area, times 3 for forward and backward, times 4 images: 192 GFLOP.
TEST(TrainingPlanTest, AStepTakesItsArithmeticAtTheRateThatWasMeasured) {
  TrainingPlan plan = PlanTraining(Config(), Model(), Set());
  EXPECT_DOUBLE_EQ(plan.step_flops, 192e9);
  EXPECT_EQ(plan.step_seconds, 0);
  SetRate(96e9, plan);
  EXPECT_DOUBLE_EQ(plan.step_seconds, 2);
  EXPECT_DOUBLE_EQ(plan.flops_per_second, 96e9);
  SetRate(0, plan);
  EXPECT_EQ(plan.step_seconds, 0);
}

// Gradients of frozen weights are not computed. Recomputation is one more forward pass.
TEST(TrainingPlanTest, AnAdapterSavesAThirdOfTheArithmeticAndRecomputationAddsAThird) {
  control::TrainConfig config = Config();
  config.network.type = control::NetworkType::kLora;
  EXPECT_DOUBLE_EQ(PlanTraining(config, Model(), Set()).step_flops, 128e9);
  config.train.gradient_checkpointing = true;
  EXPECT_DOUBLE_EQ(PlanTraining(config, Model(), Set()).step_flops, 192e9);
}

// Two stages need three turns for two micro-batches, and each stage works in two of the turns.
TEST(TrainingPlanTest, StagesThatWaitMakeAStepLonger) {
  control::TrainConfig config = Config();
  config.parallelism.pipe = 2;
  config.train.gradient_accumulation_steps = 2;
  TrainingPlan plan = PlanTraining(config, Model(), Set());
  SetRate(96e9, plan);
  EXPECT_DOUBLE_EQ(plan.step_flops, 384e9);
  EXPECT_DOUBLE_EQ(plan.step_seconds, 6);
}

// 128x64 pixels are 128 tokens; one rank's pass has four images.
TEST(TrainingPlanTest, ProductsAreOfTheTokensOfARanksPass) {
  control::TrainConfig config = Config();
  EXPECT_EQ(PlanTraining(config, Model(), Set()).rows, 512);
  EXPECT_EQ(PlanTraining(config, Model(), Set()).width, 48);
  config.parallelism.data = 2;
  config.parallelism.ring = 2;
  EXPECT_EQ(PlanTraining(config, Model(), Set()).rows, 128);
}

TEST(TrainingPlanTest, WithoutTheModelsShapeNoTimeIsKnown) {
  control::ModelDescription model = Model();
  model.transformer = {};
  TrainingPlan plan = PlanTraining(Config(), model, Set());
  SetRate(96e9, plan);
  EXPECT_EQ(plan.step_flops, 0);
  EXPECT_EQ(plan.step_seconds, 0);
}

}  // namespace
}  // namespace tessera::client
