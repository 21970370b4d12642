#include "runtime/samplers/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "runtime/samplers/forward_process.h"
#include "tests/support/training_noise_level.h"

namespace tessera::runtime {
namespace {

using testing::HasSubstr;

std::unique_ptr<Sampler> Create(const SamplerConfig& config, int steps) {
  absl::StatusOr<std::unique_ptr<Sampler>> sampler = Sampler::Create(config, steps, {});
  EXPECT_TRUE(sampler.ok()) << sampler.status();
  return *std::move(sampler);
}

// Returns numbers that differ between elements and between labels, without random numbers.
at::Tensor Values(at::IntArrayRef shape, double label) {
  int64_t elements = 1;
  for (int64_t size : shape) elements *= size;
  return at::cos(at::arange(elements, at::kDouble) * 1.7 + label).view(shape).to(at::kFloat);
}

constexpr int64_t kShape[] = {3, 2, 4, 5};

SamplerConfig Solver(int order) {
  SamplerConfig config = DefaultSamplerConfig(DpmSolverOptions{});
  config.Find<DpmSolverOptions>()->solver_order = order;
  return config;
}

TEST(SamplerTest, ACloneContinuesAsTheOriginal) {
  const std::unique_ptr<Sampler> original = Create(Solver(3), 8);
  at::Tensor sample = Values(kShape, 0);
  for (int i = 0; i < 4; ++i) sample = original->Step(sample, Values(kShape, i), {});
  const std::unique_ptr<Sampler> clone = original->Clone();
  at::Tensor other = sample;
  while (!original->done()) {
    const at::Tensor prediction = Values(kShape, original->step());
    EXPECT_EQ(clone->timestep(), original->timestep());
    other = clone->Step(other, prediction, {});
    sample = original->Step(sample, prediction, {});
    EXPECT_TRUE(at::equal(sample, other));
  }
  EXPECT_TRUE(clone->done());
}

// The levels of diffusers' scale_noise and add_noise, from the schedule: sigma of a flow and of the variance-exploding
// form, the table's product of (1 - beta) otherwise.
TEST(SamplerTest, TheLevelOfAStepIsThatOfItsNoisySample) {
  DpmSolverOptions flow;
  flow.use_flow_sigmas = true;
  for (const SamplerOptions& options : std::initializer_list<SamplerOptions>{
           DdpmOptions{}, DdimOptions{}, EulerOptions{}, DpmSolverOptions{}, flow, FlowEulerOptions{}}) {
    SamplerConfig config = DefaultSamplerConfig(options);
    if (IsFlow(config)) config.prediction_type = PredictionType::kFlow;
    const std::unique_ptr<Sampler> sampler = Create(config, 6);
    const Schedule& schedule = sampler->schedule();
    const bool euler = config.Find<EulerOptions>() != nullptr, is_flow = IsFlow(config);
    for (int step = 0; step < 6; ++step) {
      NoiseLevel expected;
      if (schedule.sigmas.empty()) {
        const double alpha = AlphasCumprod(config)[static_cast<size_t>(schedule.timesteps[step])];
        expected = {std::sqrt(alpha), std::sqrt(1 - alpha)};
      } else {
        const double sigma = schedule.sigmas[step], scale = std::sqrt(1 + sigma * sigma);
        expected = euler     ? NoiseLevel{1, sigma}
                   : is_flow ? NoiseLevel{1 - sigma, sigma}
                             : NoiseLevel{1 / scale, sigma / scale};
      }
      EXPECT_DOUBLE_EQ(sampler->level(step).alpha, expected.alpha) << SamplerName(config) << " " << step;
      EXPECT_DOUBLE_EQ(sampler->level(step).sigma, expected.sigma) << SamplerName(config) << " " << step;
    }
    EXPECT_EQ(sampler->level(6).alpha, 1) << SamplerName(config);
    EXPECT_EQ(sampler->level(6).sigma, 0) << SamplerName(config);
    EXPECT_THROW((void)sampler->level(7), c10::Error);
  }
}

// With the true x0 and noise as prediction, every step keeps x0, so a sample that has the level of its first step ends
// clean. A multistep solver has no history at its first step, wherever it begins.
TEST(SamplerTest, ASampleOfTheFirstStepsLevelEndsCleanWhereverItBegins) {
  const at::Tensor x0 = Values(kShape, 0).to(at::kDouble), noise = Values(kShape, 1).to(at::kDouble);
  for (const SamplerConfig& config : {DefaultSamplerConfig(DdimOptions{}), DefaultSamplerConfig(EulerOptions{}),
                                      Solver(1), Solver(2), Solver(3), DefaultSamplerConfig(FlowEulerOptions{})}) {
    for (const int first : {0, 1, 4, 7}) {
      SamplerConfig exact = config;
      if (auto* ddim = exact.Find<DdimOptions>()) {
        ddim->clip_sample = false;
        ddim->set_alpha_to_one = true;
        ddim->timestep_spacing = TimestepSpacing::kLeading;
      }
      const std::unique_ptr<Sampler> sampler = Create(exact, 8);
      sampler->BeginAt(first);
      EXPECT_EQ(sampler->first_step(), first);
      EXPECT_EQ(sampler->step(), first);
      const NoiseLevel level = sampler->level(first);
      at::Tensor sample = level.alpha * x0 + level.sigma * noise;
      const at::Tensor prediction = IsFlow(exact) ? noise - x0 : noise;
      int steps = 0;
      for (; !sampler->done(); ++steps) sample = sampler->Step(sample, prediction, {});
      EXPECT_EQ(steps, 8 - first);
      EXPECT_LE((sample - x0).abs().max().item<double>(), 1e-6) << SamplerName(exact) << " from " << first;
    }
  }
}

TEST(SamplerTest, BeginsOnlyAtAStepThatItHasAndOnlyBeforeTheFirst) {
  const std::unique_ptr<Sampler> sampler = Create(Solver(2), 4);
  for (const int step : {-1, 4, 5}) EXPECT_THROW(sampler->BeginAt(step), c10::Error) << step;
  sampler->BeginAt(2);
  EXPECT_EQ(sampler->Clone()->first_step(), 2);
  sampler->Step(Values(kShape, 0), Values(kShape, 1), {});
  EXPECT_THROW(sampler->BeginAt(2), c10::Error);
}

TEST(SamplerTest, TheSamplesOfABatchDoNotInfluenceEachOther) {
  SamplerConfig config = Solver(2);
  config.Find<Thresholding>()->thresholding = true;
  config.Find<Thresholding>()->sample_max_value = 2.0;
  const std::unique_ptr<Sampler> batched = Create(config, 5);
  const std::unique_ptr<Sampler> alone = Create(config, 5);
  at::Tensor sample = Values(kShape, 0) * at::tensor({1.0f, 3.0f, 9.0f}).view({3, 1, 1, 1});
  at::Tensor single = sample.narrow(0, 1, 1);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor prediction = Values(kShape, 10 + i) * at::tensor({1.0f, 2.0f, 4.0f}).view({3, 1, 1, 1});
    sample = batched->Step(sample, prediction, {});
    single = alone->Step(single, prediction.narrow(0, 1, 1), {});
    EXPECT_TRUE(at::equal(sample.narrow(0, 1, 1), single));
  }
}

TEST(SamplerTest, ThePredictionAndTheSampleAreNotWritten) {
  for (PredictionType type : {PredictionType::kEpsilon, PredictionType::kSample, PredictionType::kVelocity}) {
    DdimOptions ddim;
    ddim.eta = 0.5;
    for (const SamplerOptions& options :
         std::initializer_list<SamplerOptions>{DdpmOptions{}, ddim, EulerOptions{}, DpmSolverOptions{}}) {
      SamplerConfig config = DefaultSamplerConfig(options);
      config.prediction_type = type;
      const std::unique_ptr<Sampler> walker = Create(config, 4);
      const at::Tensor sample = Values(kShape, 0), prediction = Values(kShape, 1), noise = Values(kShape, 2);
      for (int i = 0; i < 3; ++i) walker->Step(sample, prediction, noise);
      EXPECT_TRUE(at::equal(sample, Values(kShape, 0)));
      EXPECT_TRUE(at::equal(prediction, Values(kShape, 1)));
      EXPECT_TRUE(at::equal(noise, Values(kShape, 2)));
    }
  }
}

TEST(SamplerTest, TheResultHasTheSamplesDtype) {
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const std::unique_ptr<Sampler> sampler = Create(Solver(2), 3);
    const at::Tensor sample = Values(kShape, 0).to(dtype);
    EXPECT_EQ(sampler->Step(sample, Values(kShape, 1), {}).scalar_type(), dtype);
    EXPECT_EQ(sampler->ScaleInput(sample).scalar_type(), dtype);
  }
}

TEST(SamplerTest, OnlyStepsWithNoiseNeedIt) {
  const std::unique_ptr<Sampler> ddpm = Create(DefaultSamplerConfig(DdpmOptions{}), 3);
  at::Tensor sample = Values(kShape, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ddpm->needs_noise(), i < 2);  // the last timestep is 0
    sample = ddpm->Step(sample, Values(kShape, 1), Values(kShape, 2));
  }
  EXPECT_FALSE(ddpm->needs_noise());
  EXPECT_FALSE(Create(Solver(2), 3)->needs_noise());
  SamplerConfig ddim = DefaultSamplerConfig(DdimOptions{});
  EXPECT_FALSE(Create(ddim, 3)->needs_noise());
  ddim.Find<DdimOptions>()->eta = 1;
  EXPECT_TRUE(Create(ddim, 3)->needs_noise());
}

TEST(SamplerTest, AStepWithoutItsNoiseThrows) {
  const std::unique_ptr<Sampler> ddpm = Create(DefaultSamplerConfig(DdpmOptions{}), 3);
  EXPECT_THROW(ddpm->Step(Values(kShape, 0), Values(kShape, 1), {}), c10::Error);
  EXPECT_EQ(ddpm->step(), 0);
}

TEST(SamplerTest, AStepBeyondTheLastThrows) {
  const std::unique_ptr<Sampler> sampler = Create(DefaultSamplerConfig(FlowEulerOptions{}), 1);
  const at::Tensor sample = sampler->Step(Values(kShape, 0), Values(kShape, 1), {});
  EXPECT_TRUE(sampler->done());
  EXPECT_THROW(sampler->Step(sample, Values(kShape, 1), {}), c10::Error);
  EXPECT_THROW(sampler->timestep(), c10::Error);
}

TEST(SamplerTest, APredictionOfAnotherShapeThrows) {
  const std::unique_ptr<Sampler> sampler = Create(Solver(1), 2);
  EXPECT_THROW(sampler->Step(Values({1, 2, 3}, 0), Values({1, 4, 3}, 0), {}), c10::Error);
}

// In every solver the branches of guidance and the step are computed as one sum, together with the state of the result.
TEST(SamplerTest, AGuidedStepIsThatOfTheSumOfThePredictions) {
  DdimOptions clipped;
  clipped.clip_sample = true;
  clipped.eta = 0.5;
  FlowEulerOptions stochastic;
  stochastic.stochastic_sampling = true;
  for (const SamplerOptions& options : std::initializer_list<SamplerOptions>{
           DdpmOptions{}, clipped, EulerOptions{}, DpmSolverOptions{}, FlowEulerOptions{}, stochastic}) {
    const SamplerConfig config = DefaultSamplerConfig(options);
    const std::unique_ptr<Sampler> guided = Create(config, 5), plain = Create(config, 5);
    at::Tensor sample = Values(kShape, 0).to(at::kDouble), other = sample;
    at::Tensor state = at::ones({2}, at::kLong);
    while (!plain->done()) {
      const double label = 10.0 * plain->step();
      const at::Tensor negative = Values(kShape, label).to(at::kDouble);
      const at::Tensor positive = Values(kShape, label + 1).to(at::kDouble);
      const at::Tensor noise = Values(kShape, label + 2).to(at::kDouble);
      sample = plain->Step(sample, negative * -3.5 + positive * 4.5, noise);
      const int64_t digest = state[1].item<int64_t>();
      const WeightedPrediction branches[] = {{negative, -3.5}, {positive, 4.5}};
      other = guided->Step(other, branches, noise, state);
      EXPECT_TRUE(at::allclose(sample, other, 1e-12, 1e-12)) << SamplerName(config) << " " << plain->step();
      EXPECT_EQ(state[0].item<int64_t>(), 1);
      EXPECT_NE(state[1].item<int64_t>(), digest);
    }
  }
}

// With an exact prediction of the noise every deterministic sampler reaches the clean sample.
TEST(SamplerTest, AnExactPredictionLeadsToTheCleanSample) {
  const at::Tensor x0 = Values(kShape, 3).to(at::kDouble);
  const at::Tensor noise = Values(kShape, 4).to(at::kDouble);
  DdimOptions ddim;
  ddim.clip_sample = false;
  for (const SamplerOptions& options :
       std::initializer_list<SamplerOptions>{ddim, DpmSolverOptions{}, FlowEulerOptions{}}) {
    const SamplerConfig config = DefaultSamplerConfig(options);
    const std::unique_ptr<Sampler> sampler = Create(config, 6);
    const NoiseLevel level = TrainingNoiseLevel(config, sampler->timestep());
    at::Tensor sample = AddNoise(x0, noise, std::vector<NoiseLevel>(3, level));
    const at::Tensor prediction = IsFlow(config) ? noise - x0 : noise;
    while (!sampler->done()) sample = sampler->Step(sample, prediction, {});
    EXPECT_LT((sample - x0).abs().max().item<double>(), 1e-5) << SamplerName(config);
  }
}

TEST(ForwardProcessTest, LevelsOfTheWrongNumberThrow) {
  const at::Tensor x0 = Values(kShape, 0);
  EXPECT_THROW(AddNoise(x0, x0, std::vector<NoiseLevel>(2)), c10::Error);
  EXPECT_THROW(Velocity(x0, Values({3, 1}, 0), std::vector<NoiseLevel>(3)), c10::Error);
}

}  // namespace
}  // namespace tessera::runtime
