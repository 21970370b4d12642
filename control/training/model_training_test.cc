#include "control/training/model_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::control {
namespace {

using ::testing::ElementsAre;

// The published figures of FLUX.1-dev: 19 joint and 38 fused blocks of width 3072, 11.9 billion weights.
ModelDescription Flux() {
  ModelDescription model;
  model.components = {{.name = "transformer", .role = ComponentRole::kTransformer, .parameters = 11'901'408'320}};
  model.size_multiple = 16;
  model.min_size = 16;
  model.max_size = 2048;
  model.default_height = model.default_width = 1024;
  model.blocks = 57;
  model.transformer.exchange.width = 3072;
  model.transformer.exchange.blocks.assign(19, {.kind = parallel::BlockKind::kJoint});
  model.transformer.exchange.blocks.insert(model.transformer.exchange.blocks.end(), 38,
                                           {.kind = parallel::BlockKind::kFused});
  model.transformer.token_side = 16;
  model.transformer.text_tokens = 512;
  return model;
}

TrainConfig Config() {
  TrainConfig config;
  config.network.linear = 16;
  return config;
}

TEST(ModelTrainingTest, FluxOf8BitsWithSwappedBlocksFitsInto22GiB) {
  TrainConfig config = Config();
  const TrainingMemory plain = PredictMemory(config, Flux(), {1024, 1024});
  EXPECT_EQ(plain.weights, 2u * 11'901'408'320);
  config.train.quantize = true;
  config.train.blocks_to_swap = 10;
  const TrainingMemory small = PredictMemory(config, Flux(), {1024, 1024});
  EXPECT_LE(small.total(), uint64_t{22} << 30);
  EXPECT_LT(small.weights, plain.weights / 2);
}

// By hand: (19 · 8 + 38 · 3) projections of 2 · 3072 · 16 weights.
TEST(ModelTrainingTest, AnAdaptersWeightsAreThoseOfItsFactors) {
  EXPECT_EQ(AdapterParameters(Flux(), 16), (19 * 8 + 38 * 3) * 2 * 3072 * 16);
  const TrainingMemory memory = PredictMemory(Config(), Flux(), {1024, 1024});
  EXPECT_EQ(memory.adapter, 2u * static_cast<uint64_t>(AdapterParameters(Flux(), 16)));
  EXPECT_EQ(memory.gradients, 2 * memory.adapter);
  EXPECT_EQ(memory.optimizer, 6 * memory.adapter);
}

// By hand: 4096 + 512 tokens of 3072 features; 57 inputs of two bytes and one block of 34.
TEST(ModelTrainingTest, RecomputationKeepsTheInputsOfAllBlocksAndOneBlock) {
  TrainConfig config = Config();
  const uint64_t numbers = uint64_t{4608} * 3072;
  EXPECT_EQ(PredictMemory(config, Flux(), {1024, 1024}).activations, numbers * (57 * 2 + 34));
  config.train.gradient_checkpointing = false;
  EXPECT_EQ(PredictMemory(config, Flux(), {1024, 1024}).activations, numbers * 57 * 34);
}

TEST(ModelTrainingTest, AxesShareOutWhatTheirKindShares) {
  TrainConfig config = Config();
  config.train.batch_size = 4;
  config.network.type = NetworkType::kFull;
  const TrainingMemory one = PredictMemory(config, Flux(), {512, 512});
  config.parallelism = {.ulysses = 2, .ring = 2};
  const TrainingMemory sequence = PredictMemory(config, Flux(), {512, 512});
  EXPECT_EQ(sequence.weights, one.weights);
  EXPECT_EQ(sequence.activations, one.activations / 4);
  config.parallelism = {.tensor = 4, .sequence_parallel = true};
  const TrainingMemory tensor = PredictMemory(config, Flux(), {512, 512});
  EXPECT_EQ(tensor.weights, one.weights / 4);
  EXPECT_EQ(tensor.optimizer, one.optimizer / 4);
  EXPECT_EQ(tensor.activations, one.activations / 4);
  config.parallelism = {.data = 4, .zero = ZeroStage::kOptimizer};
  const TrainingMemory zero = PredictMemory(config, Flux(), {512, 512});
  EXPECT_EQ(zero.weights, one.weights);
  EXPECT_EQ(zero.gradients, one.gradients);
  EXPECT_EQ(zero.optimizer, one.optimizer / 4);
  config.parallelism.zero = ZeroStage::kFull;
  // By hand: of 19 joint and 38 fused blocks, of half their weights each, a joint one has 2 of 76 parts.
  const TrainingMemory full = PredictMemory(config, Flux(), {512, 512});
  const double block = 11'901'408'320 * 2.0 / 76;
  EXPECT_EQ(full.weights, static_cast<uint64_t>(one.weights / 4.0 + 2 * 2 * block));
  EXPECT_EQ(full.gradients, static_cast<uint64_t>(one.gradients / 4.0 + 6 * block));
  EXPECT_EQ(full.optimizer, one.optimizer / 4);
  config.network.type = NetworkType::kLora;
  const TrainingMemory beside = PredictMemory(config, Flux(), {512, 512});
  EXPECT_EQ(beside.weights, full.weights);
  EXPECT_EQ(beside.gradients, 2 * beside.adapter);
  EXPECT_EQ(beside.optimizer, 6 * beside.adapter / 4);
}

// By hand: 57 blocks of equal cost in two stages, of which the first has 28, among them the 19 joint ones of twice a
// fused one's weights: 47 of 76 parts, and the second 29 of them. Two micro-batches are under way in the first.
TEST(ModelTrainingTest, StagesShareOutBlocksAndKeepOneMicroBatchForEachStageFromThemOn) {
  TrainConfig config = Config();
  config.network.type = NetworkType::kFull;
  const TrainingMemory one = PredictMemory(config, Flux(), {1024, 1024});
  config.parallelism.pipe = 2;
  config.train.gradient_accumulation_steps = 8;
  const TrainingMemory two = PredictMemory(config, Flux(), {1024, 1024});
  EXPECT_NEAR(static_cast<double>(two.weights), static_cast<double>(one.weights) * 47 / 76, 2);
  EXPECT_NEAR(static_cast<double>(two.optimizer), static_cast<double>(one.optimizer) * 47 / 76, 2);
  const uint64_t numbers = uint64_t{4608} * 3072;
  EXPECT_EQ(two.activations, numbers * (2 * 28 * 2 + 34));
  config.train.gradient_accumulation_steps = 1;
  EXPECT_EQ(PredictMemory(config, Flux(), {1024, 1024}).activations, numbers * (29 * 2 + 34));
  config.train.batch_size = 4;
  config.parallelism.data = 4;
  config.parallelism.zero = ZeroStage::kFull;  // and twice a joint block of 2 of 76 parts
  EXPECT_NEAR(static_cast<double>(PredictMemory(config, Flux(), {1024, 1024}).weights),
              static_cast<double>(one.weights) * (47.0 / 4 + 2 * 2) / 76, 2);
}

TEST(ModelTrainingTest, BucketsAreOfWholeTokens) {
  ModelDescription model = Flux();
  model.size_multiple = 8;
  model.default_height = 1000;
  EXPECT_EQ(BucketRuleOf(model).multiple, 16);
  EXPECT_EQ(DefaultResolution(model), 992);
}

TEST(ModelTrainingTest, TextInTheSameAttentionHasProjectionsOfItsOwn) {
  EXPECT_THAT(DefaultTargetModules(Flux()),
              ElementsAre("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"));
  EXPECT_THAT(DefaultTargetModules({}), ElementsAre("to_q", "to_k", "to_v", "to_out.0"));
}

}  // namespace
}  // namespace tessera::control
