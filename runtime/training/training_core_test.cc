// Tests densities, objectives, the random numbers of a sample, learning rates and the optimizer. The goldens
// (tests/golden/training) check the formulas against the reference scripts; these tests cover the rest.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "runtime/training/initial_weights.h"
#include "runtime/training/learning_rate.h"
#include "runtime/training/objective.h"
#include "runtime/training/optimizer.h"
#include "runtime/training/sample_noise.h"
#include "runtime/training/trained_adapter.h"
#include "tests/support/random_tensor.h"
#include "tests/support/thread_ranks.h"

namespace tessera::runtime {
namespace {

using control::LearningRateSchedule;

SamplerConfig FlowScheduler(double shift) {
  FlowEulerOptions options;
  options.shift = shift;
  return DefaultSamplerConfig(options);
}

TEST(FlowLevelTableTest, AQuantileIsALevelOfTheSchedulersTable) {
  const FlowLevelTable table(FlowScheduler(3));
  EXPECT_DOUBLE_EQ(table.At(0, 64).sigma, 1);
  EXPECT_DOUBLE_EQ(table.At(0, 64).timestep, 1000);
  // Level 500 of 1000 is 1 - 0.5, which a shift of 3 moves to 1.5 / 2.
  EXPECT_NEAR(table.At(0.5, 64).sigma, 0.75, 1e-7);
  EXPECT_NEAR(table.At(0.5004, 64).sigma, 0.75, 1e-7);
  // The last one is 1/1000 before the shift. Quantiles outside the range, which `mode` may return, select the ends.
  EXPECT_NEAR(table.At(1, 64).sigma, 3e-3 / 1.002, 1e-8);
  EXPECT_EQ(table.At(1.3, 64).sigma, table.At(0.99999, 64).sigma);
  EXPECT_EQ(table.At(-0.1, 64).sigma, 1);
}

TEST(FlowLevelTableTest, AShiftByTheImagesSizeGrowsWithItsTokens) {
  SamplerConfig config = FlowScheduler(1);
  config.Find<DynamicShift>()->use_dynamic_shifting = true;
  const FlowLevelTable table(config);
  // mu is 0.5 at 256 tokens and 1.15 at 4096.
  EXPECT_NEAR(table.At(0.5, 256).sigma, std::exp(0.5) / (std::exp(0.5) + 1), 1e-7);
  EXPECT_NEAR(table.At(0.5, 4096).sigma, std::exp(1.15) / (std::exp(1.15) + 1), 1e-7);
  EXPECT_NEAR(table.At(0.5, 4096).timestep, 1000 * table.At(0.5, 4096).sigma, 1e-9);
}

TEST(ObjectiveTest, RefusesAModelThatPredictsSamples) {
  SamplerConfig config = DefaultSamplerConfig(DdpmOptions{});
  config.prediction_type = PredictionType::kSample;
  const absl::Status refused = Objective::Create(config, {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_NE(refused.message().find("prediction_type is \"sample\""), std::string::npos) << refused;
}

// v = alpha noise - sigma x0 (Salimans and Ho, 2022), where alpha^2 is the product of 1 - beta over the linear table,
// with min-SNR weights min(snr, gamma) / (snr + 1) (Hang et al., 2023).
TEST(ObjectiveTest, AModelOfNoiseIsTrainedToPredictVelocitiesWhereTheRunSaysSo) {
  const SamplerConfig scheduler = DefaultSamplerConfig(DpmSolverOptions{});
  ASSERT_EQ(scheduler.prediction_type, PredictionType::kEpsilon);
  const Objective objective =
      *Objective::Create(scheduler, {.prediction_type = PredictionType::kVelocity, .snr_gamma = 5});
  EXPECT_EQ(objective.prediction_type(), PredictionType::kVelocity);
  const at::Tensor x0 = Random({2, 4, 2, 3}, 1), noise = Random({2, 4, 2, 3}, 2);
  const int64_t timesteps[] = {37, 801};
  const TrainingTarget target =
      objective.Make(x0, noise, std::vector{objective.AtTimestep(timesteps[0]), objective.AtTimestep(timesteps[1])});
  for (int64_t i = 0; i < 2; ++i) {
    double product = 1;
    for (int64_t t = 0; t <= timesteps[i]; ++t) product *= 1 - (1e-4 + (0.02 - 1e-4) * static_cast<double>(t) / 999);
    const double alpha = std::sqrt(product), sigma = std::sqrt(1 - product), snr = product / (1 - product);
    EXPECT_TRUE(at::allclose(target.noisy[i], alpha * x0[i] + sigma * noise[i], 0, 1e-6));
    EXPECT_TRUE(at::allclose(target.target[i], alpha * noise[i] - sigma * x0[i], 0, 1e-6));
    EXPECT_NEAR(target.weights[static_cast<size_t>(i)], std::min(snr, 5.0) / (snr + 1), 1e-6);
  }
}

TEST(ObjectiveTest, AModelOfVelocitiesIsTrainedToPredictNoiseWhereTheRunSaysSo) {
  for (const PredictionType own : {PredictionType::kVelocity, PredictionType::kSample}) {
    SamplerConfig scheduler = DefaultSamplerConfig(DdpmOptions{});
    scheduler.prediction_type = own;
    const Objective objective = *Objective::Create(scheduler, {.prediction_type = PredictionType::kEpsilon});
    const at::Tensor x0 = Random({1, 4, 2, 3}, 1), noise = Random({1, 4, 2, 3}, 2);
    EXPECT_TRUE(at::equal(objective.Make(x0, noise, std::vector{objective.AtTimestep(500)}).target, noise));
  }
}

TEST(ObjectiveTest, RefusesAnotherPredictionThanTheSchedulersKind) {
  const auto error = [](const SamplerConfig& scheduler, PredictionType prediction_type) {
    const absl::Status status = Objective::Create(scheduler, {.prediction_type = prediction_type}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  const std::string flow = error(FlowScheduler(3), PredictionType::kVelocity);
  EXPECT_NE(flow.find("train.prediction_type is \"v_prediction\""), std::string::npos) << flow;
  EXPECT_NE(flow.find("must be \"scheduler\""), std::string::npos) << flow;
  const std::string table = error(DefaultSamplerConfig(DdpmOptions{}), PredictionType::kFlow);
  EXPECT_NE(table.find("must be \"epsilon\" or \"v_prediction\""), std::string::npos) << table;
  EXPECT_TRUE(Objective::Create(FlowScheduler(3), {.prediction_type = PredictionType::kFlow}).ok());
}

TEST(ObjectiveTest, DrawsEveryTimestepOfTheTableAndNoOther) {
  const Objective objective = *Objective::Create(DefaultSamplerConfig(DdpmOptions{}), {});
  EXPECT_EQ(objective.LevelOf({.uniform = 0}, 64).timestep, 0);
  EXPECT_EQ(objective.LevelOf({.uniform = 0.9999999}, 64).timestep, 999);
  EXPECT_EQ(objective.LevelOf({.uniform = 0.25}, 64).timestep, 250);
}

TEST(SampleNoiseTest, EveryPartOfTheKeyMakesAnotherStream) {
  const SampleKey key{.seed = 7, .sample = 11, .epoch = 2};
  const auto noise = [](const SampleKey& k, NoisePurpose purpose) {
    return NormalOf(StreamOf(k, purpose), {4, 8, 8}, at::kDouble);
  };
  const at::Tensor own = noise(key, NoisePurpose::kTrainingNoise);
  EXPECT_TRUE(at::equal(own, noise(key, NoisePurpose::kTrainingNoise)));
  const at::Tensor others[] = {
      noise({.seed = 8, .sample = 11, .epoch = 2}, NoisePurpose::kTrainingNoise),
      noise({.seed = 7, .sample = 12, .epoch = 2}, NoisePurpose::kTrainingNoise),
      noise({.seed = 7, .sample = 11 + (int64_t{1} << 32), .epoch = 2}, NoisePurpose::kTrainingNoise),
      noise({.seed = 7, .sample = 11, .epoch = 3}, NoisePurpose::kTrainingNoise),
      noise(key, NoisePurpose::kAutoencoderSample)};
  // The correlation of 256 independent numbers is within 5 / sqrt(256).
  for (const at::Tensor& other : others) EXPECT_LT(std::abs((own * other).mean().item<double>()), 0.31);
}

TEST(SampleNoiseTest, ElementsAreNumberedThroughTheWholeSample) {
  const NoiseKey key = StreamOf({.seed = 1, .sample = 2}, NoisePurpose::kTrainingNoise);
  std::vector<double> tail(5);
  FillNormal(key, 27, tail);
  EXPECT_TRUE(
      at::equal(NormalOf(key, {2, 4, 4}, at::kDouble).flatten().narrow(0, 27, 5), at::tensor(tail, at::kDouble)));
}

TEST(SampleNoiseTest, UniformNumbersAndDropoutHaveTheirShares) {
  constexpr int kDraws = 4000;
  double sum = 0, square = 0;
  int dropped = 0;
  for (int64_t i = 0; i < kDraws; ++i) {
    const LevelDraw draw = DrawLevel({.seed = 5, .sample = i});
    ASSERT_GE(draw.uniform, 0);
    ASSERT_LT(draw.uniform, 1);
    sum += draw.uniform;
    square += draw.normal * draw.normal;
    dropped += DropsCaption({.seed = 5, .sample = i}, 0.1);
  }
  // The bounds are five standard deviations of each mean.
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * 0.2887 / std::sqrt(kDraws));
  EXPECT_NEAR(square / kDraws, 1, 5 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(dropped, 0.1 * kDraws, 5 * std::sqrt(kDraws * 0.09));
  EXPECT_FALSE(DropsCaption({.seed = 5}, 0));
  EXPECT_TRUE(DropsCaption({.seed = 5}, 1));
}

TEST(SampleNoiseTest, LevelsOfLowDiscrepancyLieEvenlyInEveryBatch) {
  // The discrepancy of n consecutive members of the sequence is of order log n / n, that of random numbers of order 1 /
  // sqrt(n): none of 64 cells of a batch of 256 is empty, and in a batch of 64 no cell has three members.
  for (const int64_t first : {int64_t{0}, int64_t{123}, int64_t{1} << 40}) {
    std::vector<int> few(64), many(64);
    double square = 0;
    for (int64_t i = 0; i < 256; ++i) {
      const LevelDraw draw = DrawEvenLevel(5, first + i);
      ASSERT_GE(draw.uniform, 0);
      ASSERT_LT(draw.uniform, 1);
      // The normal number is the quantile of the uniform one.
      EXPECT_NEAR(0.5 * std::erfc(-draw.normal / std::numbers::sqrt2), draw.uniform, 1e-14);
      square += draw.normal * draw.normal;
      const auto cell = static_cast<size_t>(draw.uniform * 64);
      ++many[cell];
      if (i < 64) ++few[cell];
    }
    EXPECT_LE(*std::max_element(few.begin(), few.end()), 2);
    EXPECT_GE(*std::min_element(many.begin(), many.end()), 3);
    EXPECT_LE(*std::max_element(many.begin(), many.end()), 5);
    EXPECT_NEAR(square / 256, 1, 0.1);
  }
  EXPECT_NE(DrawEvenLevel(5, 0).uniform, DrawEvenLevel(6, 0).uniform);
}

TEST(LearningRateTest, RisesInALineAndStaysOrFallsInACosine) {
  const LearningRate constant{.base = 2, .warmup_steps = 4, .steps = 100};
  EXPECT_EQ(constant.At(0), 0);
  EXPECT_EQ(constant.At(1), 0.5);
  EXPECT_EQ(constant.At(4), 2);
  EXPECT_EQ(constant.At(99), 2);
  const LearningRate cosine{.base = 2, .schedule = LearningRateSchedule::kCosine, .warmup_steps = 4, .steps = 104};
  EXPECT_EQ(cosine.At(2), 1);
  EXPECT_EQ(cosine.At(4), 2);
  EXPECT_NEAR(cosine.At(54), 1, 1e-15);
  EXPECT_NEAR(cosine.At(4 + 25), 1 + std::sqrt(0.5), 1e-14);
  EXPECT_NEAR(cosine.At(104), 0, 1e-15);
  const LearningRate stable{.base = 2,
                            .schedule = LearningRateSchedule::kWarmupStableDecay,
                            .warmup_steps = 4,
                            .decay_steps = 50,
                            .steps = 100};
  EXPECT_EQ(stable.At(2), 1);
  EXPECT_EQ(stable.At(4), 2);
  EXPECT_EQ(stable.At(50), 2);
  EXPECT_NEAR(stable.At(75), 1, 1e-15);
  EXPECT_NEAR(stable.At(100), 0, 1e-15);
  EXPECT_EQ((LearningRate{.base = 3}.At(0)), 3);
}

// A rank's part of a column product with 6 inputs and 8 outputs, and of a row product of 8 and 6 with parts of 2 and 6.
struct TwoProducts {
  explicit TwoProducts(models::TensorShard shard) : table(at::kDouble, at::kCPU, {.tensor = shard}) {
    table.AddPacked({{.name = "a.to_q.weight", .shape = {8, 6}, .role = models::LinearRole::kColumn},
                     {.name = "a.to_k.weight", .shape = {8, 6}, .role = models::LinearRole::kColumn}});
    table.AddPacked(
        {{.name = "a.to_out.0.weight", .shape = {6, 8}, .role = models::LinearRole::kRow, .parts = {2, 6}}});
    table.Add({.name = "a.norm.weight", .shape = {6}});
    table.RequireGradients();
  }
  models::ParamTable table;
};

TEST(TrainedAdapterTest, EachRankHasItsPartOfTheSameFactors) {
  const TwoProducts whole({}), part({.rank = 1, .size = 2});
  const AdapterOptions options{.targets = {"to_q", "to_out.0"}, .rank = 4, .alpha = 2, .seed = 9};
  const TrainedAdapter all = *MakeTrainedAdapter(whole.table.params(), {}, options);
  const TrainedAdapter own = *MakeTrainedAdapter(part.table.params(), {.rank = 1, .size = 2}, options);
  ASSERT_EQ(all.params.size(), 4u);
  EXPECT_EQ(all.params[2].spec.name, "a.to_out.0.lora_A.weight");
  EXPECT_EQ(all.params[2].Value().sizes(), (at::IntArrayRef{4, 8}));
  EXPECT_TRUE(at::equal(own.params[0].Value(), all.params[0].Value()));  // A of the column product
  EXPECT_EQ(own.params[1].Value().sizes(), (at::IntArrayRef{4, 4}));     // its B: half of the outputs
  const at::Tensor& a = all.params[2].Value();                           // of the row product: halves of parts
  EXPECT_TRUE(at::equal(own.params[2].Value(), at::cat({a.narrow(1, 1, 1), a.narrow(1, 5, 3)}, 1)));
  EXPECT_EQ(own.params[3].Value().sizes(), (at::IntArrayRef{6, 4}));
  EXPECT_EQ(own.params[3].spec.role, models::LinearRole::kReplicated);
  EXPECT_EQ(all.factors.Find("a.to_q")->front().scale, 0.5);
  EXPECT_EQ(all.params[1].Value().abs().max().item<double>(), 0);
  // Uniform within 1 / sqrt(6).
  EXPECT_LE(all.params[0].Value().abs().max().item<double>(), 1 / std::sqrt(6.0));
  EXPECT_GT(all.params[0].Value().abs().max().item<double>(), 0.7 / std::sqrt(6.0));
  EXPECT_TRUE(all.params[0].storage.requires_grad());
  for (const models::Param& param : whole.table.params()) EXPECT_FALSE(param.storage.requires_grad());
}

TEST(InitialWeightsTest, EachRankHasItsPartOfTheSameNumbers) {
  parallel::SingleRank one;
  const TwoProducts whole({}), part({.rank = 1, .size = 2}), other({});
  DrawInitialWeights(whole.table.params(), {}, 9, one);
  DrawInitialWeights(part.table.params(), {.rank = 1, .size = 2}, 9, one);
  DrawInitialWeights(other.table.params(), {}, 10, one);
  const auto value = [](const TwoProducts& products, size_t i) { return products.table.params()[i].Value().detach(); };
  EXPECT_TRUE(at::equal(value(part, 0), value(whole, 0).narrow(0, 4, 4)));
  EXPECT_TRUE(at::equal(value(part, 1), value(whole, 1).narrow(0, 4, 4)));
  const at::Tensor& row = value(whole, 2);  // halves of parts of 2 and 6
  EXPECT_TRUE(at::equal(value(part, 2), at::cat({row.narrow(1, 1, 1), row.narrow(1, 5, 3)}, 1)));
  EXPECT_FALSE(at::equal(value(whole, 0), value(whole, 1)));
  EXPECT_FALSE(at::equal(value(whole, 0), value(other, 0)));
  EXPECT_TRUE(at::equal(value(whole, 3), at::ones({6}, at::kDouble)));
}

TEST(InitialWeightsTest, ABlockBeginsAsTheIdentity) {
  parallel::SingleRank one;
  models::ParamTable table(at::kDouble, at::kCPU);
  const auto add = [&](const char* name, std::vector<int64_t> shape) { table.Add({.name = name, .shape = shape}); };
  add("blocks.0.attn1.to_q.weight", {64, 32});
  add("blocks.0.attn1.to_q.bias", {64});
  add("blocks.0.norm1.linear.weight", {64, 32});
  add("blocks.0.attn2.to_out.0.weight", {32, 32});
  add("blocks.0.proj_out.weight", {32, 32});
  add("proj_out.weight", {32, 32});
  add("blocks.0.scale_shift_table", {6, 100});
  add("adaln_single.linear.weight", {64, 64});
  add("pos_embed.proj.weight", {64, 4, 2, 2});
  table.Add({.name = "pos_embed.pos_embed", .shape = {4}, .buffer = true});
  table.RequireGradients();
  for (const models::Param& param : table.params()) param.Value().detach().fill_(7);
  DrawInitialWeights(table.params(), {}, 9, one);
  const auto largest = [&](size_t i) { return table.params()[i].Value().abs().max().item<double>(); };
  const auto deviation = [&](size_t i) { return table.params()[i].Value().std().item<double>(); };
  EXPECT_LE(largest(0), 0.25);  // the root of 6 / (64 + 32)
  EXPECT_GT(largest(0), 0.24);
  for (const size_t zero : {1u, 2u, 3u, 5u}) EXPECT_EQ(largest(zero), 0) << table.params()[zero].spec.name;
  EXPECT_GT(largest(4), 0.3);
  EXPECT_NEAR(deviation(6), 0.1, 0.01);
  EXPECT_NEAR(deviation(7), 0.02, 0.002);
  EXPECT_LE(largest(8), std::sqrt(6 / (64.0 + 16)));
  EXPECT_EQ(largest(9), 7);
}

TEST(TrainedAdapterTest, ATargetThatNoModuleHasNamesTheNearest) {
  const TwoProducts model({});
  const absl::Status refused = MakeTrainedAdapter(model.table.params(), {}, {.targets = {"to_qq"}}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_EQ(refused.message(),
            "network.target_modules has \"to_qq\", with which no module of the model ends; the nearest is \"to_q\"");
}

// A table with one replicated parameter.
struct OneParameter {
  explicit OneParameter(at::ScalarType dtype) : table(dtype, at::kCPU) {
    table.Add({.name = "w", .shape = {3, 5}});
    table.params()[0].Value().copy_(Random({3, 5}, 1));
    table.RequireGradients();
  }
  const models::Param& param() const { return table.params()[0]; }

  models::ParamTable table;
};

TEST(AdamWTest, StepsBelowTheModelsPrecisionAddUpInTheMasterWeights) {
  OneParameter model(at::kBFloat16);
  Gradients gradients(model.table.params());
  AdamW optimizer(gradients, {.weight_decay = 0});
  EXPECT_EQ(optimizer.state()[0].master.scalar_type(), at::kFloat);
  const at::Tensor before = model.param().Value().detach().clone(), master = optimizer.state()[0].master.clone();
  // With a gradient of constant sign a step moves a weight by the learning rate; 1e-4 is far below the resolution of
  // bf16's eight bits at 1.
  for (int step = 0; step < 100; ++step) {
    gradients.Of(0).fill_(1);
    optimizer.Step(1e-4);
  }
  EXPECT_LE((optimizer.state()[0].master - (master - 0.01)).abs().max().item<float>(), 1e-5);
  EXPECT_TRUE(at::equal(model.param().Value().detach(), optimizer.state()[0].master.to(at::kBFloat16)));
  EXPECT_FALSE(at::equal(model.param().Value().detach(), before));
}

TEST(AdamWTest, GoesOnFromAStateThatWasWritten) {
  OneParameter model(at::kDouble), other(at::kDouble);
  Gradients gradients(model.table.params()), of_other(other.table.params());
  const AdamWOptions options{.ema_decay = 0.9};
  AdamW optimizer(gradients, options), resumed(of_other, options);
  for (uint64_t step = 0; step < 3; ++step) {
    gradients.Of(0).copy_(Random({3, 5}, 10 + step));
    optimizer.Step(1e-2);
  }
  const OptimizerState& from = optimizer.state()[0];
  const OptimizerState& to = resumed.state()[0];
  to.master.copy_(from.master);
  to.exp_avg.copy_(from.exp_avg);
  to.exp_avg_sq.copy_(from.exp_avg_sq);
  to.ema.copy_(from.ema);
  resumed.Resume(optimizer.step());
  EXPECT_TRUE(at::equal(other.param().Value(), model.param().Value()));
  for (Gradients* own : {&gradients, &of_other}) own->Of(0).copy_(Random({3, 5}, 20));
  optimizer.Step(1e-2);
  resumed.Step(1e-2);
  EXPECT_TRUE(at::equal(other.param().Value(), model.param().Value()));
  EXPECT_TRUE(at::equal(to.ema, from.ema));
  EXPECT_EQ(resumed.step(), 4);
}

TEST(AdamWTest, TheAverageTakesTheModelsPlaceAndGivesItBack) {
  OneParameter model(at::kDouble);
  Gradients gradients(model.table.params());
  AdamW optimizer(gradients, {.ema_decay = 0.9});
  gradients.Of(0).fill_(1);
  optimizer.Step(0.5);
  const OptimizerState& state = optimizer.state()[0];
  EXPECT_FALSE(at::equal(state.ema, state.master));
  optimizer.UseAverage(true);
  EXPECT_TRUE(at::equal(model.param().Value().detach(), state.ema));
  optimizer.UseAverage(false);
  EXPECT_TRUE(at::equal(model.param().Value().detach(), state.master));
}

// Covers parameters with fewer rows than replicas, with a number of rows that is not divisible, and packed ones.
class SharedStateTest : public testing::TestWithParam<int> {};

TEST_P(SharedStateTest, ReplicasThatShareTheStateHaveTheWeightsOfOneThatKeepsItAll) {
  const int replicas = GetParam();
  const auto make = [](models::ParamTable& table) {
    table.Add({.name = "few", .shape = {2}});
    table.AddPacked({{.name = "q", .shape = {5, 3}}, {.name = "k", .shape = {7, 3}}});
    uint64_t seed = 1;
    for (const models::Param& param : table.params()) param.Value().copy_(Random(param.shape, seed++));
    table.RequireGradients();
  };
  const AdamWOptions options{.ema_decay = 0.9};
  const auto step = [](Gradients& gradients, AdamW& optimizer) {
    for (uint64_t k = 0; k < 3; ++k) {
      for (size_t i = 0; i < gradients.params().size(); ++i) {
        gradients.Of(i).copy_(Random(gradients.params()[i].shape, 10 * k + i));
      }
      optimizer.Step(1e-2);
    }
  };
  models::ParamTable whole(at::kFloat, at::kCPU);
  make(whole);
  Gradients gradients(whole.params());
  AdamW optimizer(gradients, options);
  step(gradients, optimizer);

  std::vector<int64_t> kept(static_cast<size_t>(replicas));
  RunRanks(replicas, [&](ThreadRank& rank) {
    models::ParamTable table(at::kFloat, at::kCPU);
    make(table);
    Gradients own(table.params());
    AdamW shared(own, options, &rank.world());
    step(own, shared);
    for (size_t i = 0; i < table.params().size(); ++i) {
      EXPECT_TRUE(at::equal(table.params()[i].Value(), whole.params()[i].Value())) << table.params()[i].spec.name;
      const OptimizerState &part = shared.state()[i], &all = optimizer.state()[i];
      kept[static_cast<size_t>(rank.rank())] += part.master.numel();
      EXPECT_TRUE(at::equal(part.exp_avg_sq, all.exp_avg_sq.narrow(0, part.begin, part.end - part.begin)));
      EXPECT_TRUE(at::equal(part.ema, all.ema.narrow(0, part.begin, part.end - part.begin)));
    }
    shared.UseAverage(true);
    EXPECT_TRUE(at::equal(table.params()[1].Value(), optimizer.state()[1].ema));
    shared.Resume(shared.step());
    EXPECT_TRUE(at::equal(table.params()[1].Value(), whole.params()[1].Value()));
  });
  EXPECT_EQ(std::accumulate(kept.begin(), kept.end(), int64_t{0}), 2 + 36);
  EXPECT_LE(*std::max_element(kept.begin(), kept.end()), 38 / replicas + 8);
}

INSTANTIATE_TEST_SUITE_P(Replicas, SharedStateTest, testing::Values(2, 3), testing::PrintToStringParamName());

// The optimizer ignores frozen parameters, and gradients of several passes add up.
TEST(GradientsTest, CollectAddsWhatPassesLeaveAndLeavesFrozenParametersOut) {
  models::ParamTable table(at::kBFloat16, at::kCPU);
  table.Add({.name = "frozen", .shape = {2}});
  table.AddPacked({{.name = "a", .shape = {2, 3}}, {.name = "b", .shape = {1, 3}}});
  for (const models::Param& param : table.params()) param.Value().fill_(1);
  table.RequireGradients();
  at::Tensor(table.params()[0].storage).requires_grad_(false);
  Gradients gradients(table.params());
  ASSERT_EQ(gradients.params().size(), 2u);
  EXPECT_EQ(gradients.params()[1].spec.name, "b");
  const at::Tensor weights = at::arange(9, at::kBFloat16).view({3, 3});
  for (int pass = 0; pass < 3; ++pass) {
    (table.params()[1].storage * weights).sum().backward();
    gradients.Collect();
    EXPECT_FALSE(table.params()[1].storage.grad().defined());
  }
  EXPECT_EQ(gradients.Of(0).scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(gradients.Of(0), 3 * at::arange(6, at::kFloat).view({2, 3})));
  EXPECT_TRUE(at::equal(gradients.Of(1), 3 * at::arange(6, 9, at::kFloat).view({1, 3})));
  parallel::SingleRank one;
  EXPECT_NEAR(gradients.GlobalNorm(TrainingGroups::Alone(one)), 3 * std::sqrt(204.0), 1e-4);
  gradients.Clear();
  EXPECT_EQ(gradients.Of(0).abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace tessera::runtime
