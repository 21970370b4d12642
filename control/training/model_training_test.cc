#include "control/training/model_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "control/model/model_description.h"

namespace tessera::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  model.cost = {.token_side = 16, .text_tokens = 512, .joint_text = true};
  return model;
}

TrainConfig Config() {
  TrainConfig config;
  config.network.linear = 16;
  return config;
}

TEST(ModelTrainingTest, FluxOf8BitsWithSwappedBlocksFitsInto22GiB) {
  TrainConfig config = Config();
  const TrainingMemory plain = PredictMemory(config, Flux(), {{1024, 1024}});
  EXPECT_EQ(plain.weights, 2u * 11'901'408'320);
  config.train.quantize = true;
  config.train.blocks_to_swap = 10;
  const TrainingMemory small = PredictMemory(config, Flux(), {{1024, 1024}});
  EXPECT_LE(small.total(), uint64_t{22} << 30);
  EXPECT_LT(small.weights, plain.weights / 2);
}

TEST(ModelTrainingTest, QuantizedMatricesStaySoUnderAnAdapter) {
  ModelDescription model = Flux();
  const uint64_t parameters = model.components.front().parameters, packed = 11'900'000'000;
  const WeightSize blocks = {.elements = packed,
                             .matrices = packed,
                             .rows = packed / 3072,
                             .stored_elements = packed,
                             .stored_bytes = packed / 32 * 18};  // four bits, and a scale for 32 values
  model.weights = {
      {.role = ComponentRole::kTransformer, .blocks = {blocks}, .frame = {.elements = parameters - packed}}};
  TrainConfig config = Config();
  const uint64_t expected = blocks.stored_bytes + 2 * (parameters - packed);
  EXPECT_NEAR(static_cast<double>(PredictMemory(config, model, {{1024, 1024}}).weights), static_cast<double>(expected),
              1e4);
  config.train.quantize = true;  // from the widened ones, with a scale for each row
  EXPECT_NEAR(static_cast<double>(PredictMemory(config, model, {{1024, 1024}}).weights),
              static_cast<double>(packed + 4 * blocks.rows + 2 * (parameters - packed)), 1e4);
}

TEST(ModelTrainingTest, SwappedBlocksAreSpreadOverAllSoThatTheyAlternateWithSomeThatStay) {
  EXPECT_THAT(SwappedBlocks(57, 10), ElementsAre(5, 11, 17, 22, 28, 34, 39, 45, 51, 56));
  EXPECT_THAT(SwappedBlocks(4, 2), ElementsAre(1, 3));
  EXPECT_THAT(SwappedBlocks(4, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(SwappedBlocks(4, 0), IsEmpty());
  for (int64_t swapped = 1; swapped <= 28; ++swapped) {
    const std::vector<int64_t> blocks = SwappedBlocks(57, swapped);
    ASSERT_EQ(blocks.size(), static_cast<size_t>(swapped));
    for (size_t i = 1; i < blocks.size(); ++i) EXPECT_GE(blocks[i] - blocks[i - 1], 2) << swapped;
  }
}

// By hand: three of the ten blocks above are joint blocks with 2 of 76 parts each, and each of the two buffers has 2
// parts.
TEST(ModelTrainingTest, BlocksThatWaitInTheHostsMemoryLeaveTwoBuffersOnTheDevice) {
  TrainConfig config = Config();
  config.train.blocks_to_swap = 10;
  const double whole = 2 * 11'901'408'320.0;
  EXPECT_NEAR(static_cast<double>(PredictMemory(config, Flux(), {{1024, 1024}}).weights),
              whole * (76 - (3 * 2 + 7) + 2 * 2) / 76, 2);
  // A single block needs one buffer and saves nothing.
  config.train.blocks_to_swap = 1;
  EXPECT_NEAR(static_cast<double>(PredictMemory(config, Flux(), {{1024, 1024}}).weights), whole, 2);
  config.train.blocks_to_swap = 57;
  EXPECT_NEAR(static_cast<double>(PredictMemory(config, Flux(), {{1024, 1024}}).weights), whole * 4 / 76, 2);
  const SwappedParameters swapped = SwappedParametersOf(Flux(), 10, 0, 57);
  EXPECT_NEAR(swapped.waiting, 11'901'408'320.0 * 13 / 76, 2);
  EXPECT_NEAR(swapped.buffers, 11'901'408'320.0 * 4 / 76, 2);
  // The second half contains five of them, all fused.
  const SwappedParameters of_half = SwappedParametersOf(Flux(), 10, 30, 57);
  EXPECT_NEAR(of_half.waiting, 11'901'408'320.0 * 5 / 76, 2);
  EXPECT_NEAR(of_half.buffers, 11'901'408'320.0 * 2 / 76, 2);
}

// By hand: two blocks of 120 weights and two of 60, out of 1000.
TEST(ModelTrainingTest, WhereTheWeightsAreKnownBlocksAreAsLargeAsTheirs) {
  ModelDescription model;
  model.components = {{.name = "transformer", .role = ComponentRole::kTransformer, .parameters = 1000}};
  model.blocks = 4;
  model.transformer.exchange.blocks.assign(4, {.kind = parallel::BlockKind::kJoint});
  const WeightSize large = {.elements = 100}, small = {.elements = 40};
  // A block that waits takes its quarter of the modulations with it.
  model.weights = {{.role = ComponentRole::kTextEncoder, .blocks = {4, WeightSize{.elements = 1000}}},
                   {.role = ComponentRole::kTransformer,
                    .blocks = {large, large, small, small},
                    .frame = {.elements = 640},
                    .modulations = {.elements = 80}}};
  TrainConfig config = Config();
  config.train.blocks_to_swap = 4;
  EXPECT_EQ(PredictMemory(config, model, {{64, 64}}).weights, 2u * (1000 - 2 * 120 - 2 * 60 + 2 * 120));
  config.train.blocks_to_swap = 2;  // 1 and 3
  EXPECT_EQ(PredictMemory(config, model, {{64, 64}}).weights, 2u * (1000 - 120 - 60 + 2 * 120));
}

TEST(ModelTrainingTest, NoMoreBlocksAreSwappedThanThereAreAndNoneThatAreSharedOut) {
  TrainConfig config = Config();
  config.train.blocks_to_swap = 57;
  EXPECT_TRUE(CheckBlocksToSwap(config, Flux()).ok());
  config.train.blocks_to_swap = 58;
  EXPECT_THAT(std::string(CheckBlocksToSwap(config, Flux()).message()),
              HasSubstr("train.blocks_to_swap is 58; valid values are 0 to 57"));
  config.train.blocks_to_swap = 10;
  config.parallelism = {.data = 2, .zero = ZeroStage::kFull};
  EXPECT_THAT(std::string(CheckBlocksToSwap(config, Flux()).message()),
              HasSubstr("train.blocks_to_swap is 10; with parallelism.zero: 3"));
}

// By hand: (19 · 8 + 38 · 3) projections with 2 · 3072 · 16 weights each.
TEST(ModelTrainingTest, AnAdaptersWeightsAreThoseOfItsFactors) {
  EXPECT_EQ(AdapterParameters(Flux(), {.linear = 16}), (19 * 8 + 38 * 3) * 2 * 3072 * 16);
  const TrainingMemory memory = PredictMemory(Config(), Flux(), {{1024, 1024}});
  EXPECT_EQ(memory.adapter, 2u * static_cast<uint64_t>(AdapterParameters(Flux(), {.linear = 16})));
  EXPECT_EQ(memory.gradients, 2 * memory.adapter);
  EXPECT_EQ(memory.optimizer, 6 * memory.adapter);
}

TEST(ModelTrainingTest, AnAdapterOfChosenModulesHasTheirSides) {
  ModelDescription model = Flux();
  model.products = {{.component = "text_encoder", .name = "a.to_q", .out = 100, .in = 100},
                    {.component = "transformer", .name = "a.to_q", .out = 6, .in = 10},
                    {.component = "transformer", .name = "a.to_k", .out = 6, .in = 10},
                    {.component = "transformer", .name = "norm.linear", .out = 30, .in = 10}};
  TrainConfig config = Config();
  config.network.linear = 4;
  config.network.target_modules = {"all-linear"};
  EXPECT_EQ(AdapterParameters(model, config.network), 4 * (16 + 16 + 40));
  config.network.target_modules = {"a.*"};
  EXPECT_EQ(AdapterParameters(model, config.network), 4 * (16 + 16));
  EXPECT_EQ(PredictMemory(config, model, {{1024, 1024}}).adapter, 2u * 4 * (16 + 16));
  EXPECT_TRUE(CheckTargetModules(config, model).ok());
  config.network.target_modules = {};
  EXPECT_EQ(AdapterParameters(model, config.network), 4 * (16 + 16)) << "the default modules";
  config.network.target_modules = {"to_v"};
  EXPECT_THAT(std::string(CheckTargetModules(config, model).message()),
              HasSubstr("network.target_modules has \"to_v\""));
  EXPECT_TRUE(CheckTargetModules(config, Flux()).ok()) << "its modules are unknown";
}

// By hand: 4096 + 512 tokens of 3072 features; 57 inputs at two bytes and one block at 34.
TEST(ModelTrainingTest, RecomputationKeepsTheInputsOfAllBlocksAndOneBlock) {
  TrainConfig config = Config();
  const uint64_t numbers = uint64_t{4608} * 3072;
  EXPECT_EQ(PredictMemory(config, Flux(), {{1024, 1024}}).activations, numbers * (57 * 2 + 34));
  config.train.gradient_checkpointing = false;
  EXPECT_EQ(PredictMemory(config, Flux(), {{1024, 1024}}).activations, numbers * 57 * 34);
}

TEST(ModelTrainingTest, AxesShareOutWhatTheirKindShares) {
  TrainConfig config = Config();
  config.train.batch_size = 4;
  config.network.type = NetworkType::kFull;
  const TrainingMemory one = PredictMemory(config, Flux(), {{512, 512}});
  config.parallelism = {.ulysses = 2, .ring = 2};
  const TrainingMemory sequence = PredictMemory(config, Flux(), {{512, 512}});
  EXPECT_EQ(sequence.weights, one.weights);
  EXPECT_EQ(sequence.activations, one.activations / 4);
  config.parallelism = {.tensor = 4, .sequence_parallel = true};
  const TrainingMemory tensor = PredictMemory(config, Flux(), {{512, 512}});
  EXPECT_EQ(tensor.weights, one.weights / 4);
  EXPECT_EQ(tensor.optimizer, one.optimizer / 4);
  EXPECT_EQ(tensor.activations, one.activations / 4);
  config.parallelism = {.data = 4, .zero = ZeroStage::kOptimizer};
  const TrainingMemory zero = PredictMemory(config, Flux(), {{512, 512}});
  EXPECT_EQ(zero.weights, one.weights);
  EXPECT_EQ(zero.gradients, one.gradients);
  EXPECT_EQ(zero.optimizer, one.optimizer / 4);
  config.parallelism.zero = ZeroStage::kFull;
  // By hand: of 19 joint and 38 fused blocks, which have half a joint block's weights, a joint block has 2 of 76 parts.
  const TrainingMemory full = PredictMemory(config, Flux(), {{512, 512}});
  const double block = 11'901'408'320 * 2.0 / 76;
  EXPECT_EQ(full.weights, static_cast<uint64_t>(one.weights / 4.0 + 2 * 2 * block));
  EXPECT_EQ(full.gradients, static_cast<uint64_t>(one.gradients / 4.0 + 6 * block));
  EXPECT_EQ(full.optimizer, one.optimizer / 4);
  config.network.type = NetworkType::kLora;
  const TrainingMemory lora = PredictMemory(config, Flux(), {{512, 512}});
  EXPECT_EQ(lora.weights, full.weights);
  EXPECT_EQ(lora.gradients, 2 * lora.adapter);
  EXPECT_EQ(lora.optimizer, 6 * lora.adapter / 4);
}

// By hand: 57 blocks of equal cost in two stages. The first stage has 28 blocks, including the 19 joint ones with twice
// a fused block's weights: 47 of 76 parts. The second has the other 29 parts. Two micro-batches are in flight in the
// first.
TEST(ModelTrainingTest, StagesShareOutBlocksAndKeepOneMicroBatchForEachStageFromThemOn) {
  TrainConfig config = Config();
  config.network.type = NetworkType::kFull;
  const TrainingMemory one = PredictMemory(config, Flux(), {{1024, 1024}});
  config.parallelism.pipe = 2;
  config.train.gradient_accumulation_steps = 8;
  const TrainingMemory two = PredictMemory(config, Flux(), {{1024, 1024}});
  EXPECT_NEAR(static_cast<double>(two.weights), static_cast<double>(one.weights) * 47 / 76, 2);
  EXPECT_NEAR(static_cast<double>(two.optimizer), static_cast<double>(one.optimizer) * 47 / 76, 2);
  const uint64_t numbers = uint64_t{4608} * 3072;
  EXPECT_EQ(two.activations, numbers * (2 * 28 * 2 + 34));
  config.train.gradient_accumulation_steps = 1;
  EXPECT_EQ(PredictMemory(config, Flux(), {{1024, 1024}}).activations, numbers * (29 * 2 + 34));
  config.train.batch_size = 4;
  config.parallelism.data = 4;
  config.parallelism.zero = ZeroStage::kFull;  // plus two joint blocks of 2 of 76 parts each
  EXPECT_NEAR(static_cast<double>(PredictMemory(config, Flux(), {{1024, 1024}}).weights),
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
  ModelDescription flux2;
  for (const char* name : {"transformer_blocks.0.attn.to_out.0", "single_transformer_blocks.0.attn.to_qkv_mlp_proj",
                           "single_transformer_blocks.0.attn.to_out"}) {
    flux2.products.push_back({.component = "transformer", .name = name});
  }
  EXPECT_THAT(DefaultTargetModules(flux2),
              ElementsAre("to_q", "to_k", "to_v", "to_out.0", "to_qkv_mlp_proj", "attn.to_out"));
  ModelDescription one_stream = Flux();
  for (parallel::BlockExchange& block : one_stream.transformer.exchange.blocks) {
    block.kind = parallel::BlockKind::kUnified;
  }
  EXPECT_THAT(DefaultTargetModules(one_stream), ElementsAre("to_q", "to_k", "to_v", "to_out.0"));
}

TEST(CheckPredictionTypeTest, AFlowIsTrainedToNothingElse) {
  TrainConfig config;
  config.train.prediction_type = TrainedPrediction::kVelocity;
  ModelDescription model;
  model.samplers = {"ddpm", "dpm++2"};
  EXPECT_TRUE(CheckPredictionType(config, model).ok());
  model.samplers = {"flow-euler", "dpm++2"};
  EXPECT_THAT(std::string(CheckPredictionType(config, model).message()),
              HasSubstr("train.prediction_type is v_prediction; this model is trained by flow matching alone"));
  config.train.prediction_type = TrainedPrediction::kScheduler;
  EXPECT_TRUE(CheckPredictionType(config, model).ok());
}

// By hand: FLUX.1 Kontext reads a square picture at 1024x1024, which has as many tokens as an image of that size, and
// Qwen-Image-Edit also has tokens of it in the prompt: (1024 / 28 rounded)² = 37².
TEST(ModelTrainingTest, PicturesAreTokensOfTheActivations) {
  ModelDescription model = Flux();
  model.pictures = kKontextPictures;
  TrainingSet set;
  set.buckets = {{512, 512}, {1024, 1024}};
  set.controls = {{{.path = "a", .digest = {}, .size = {.width = 300, .height = 300}}}};
  set.samples.resize(3);
  set.samples[0].bucket = 1;
  set.samples[1].controls = 0;
  EXPECT_EQ(ControlTokens(model, set.controls[0]), 64 * 64);
  const LargestSample largest = LargestSampleOf(set, model);
  EXPECT_EQ(largest.bucket, (Bucket{512, 512}));
  EXPECT_EQ(largest.control_tokens, 64 * 64);
  const TrainConfig config = Config();
  const auto activations = [&](const LargestSample& sample) {
    return static_cast<double>(PredictMemory(config, model, sample).activations);
  };
  EXPECT_NEAR(activations(largest) / activations({{512, 512}}), (1024.0 + 512 + 4096) / (1024 + 512), 1e-6);
  model.pictures = kQwenEditPictures;
  EXPECT_EQ(ControlTokens(model, set.controls[0]), 64 * 64 + 37 * 37);
}

}  // namespace
}  // namespace tessera::control
