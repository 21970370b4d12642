#include "runtime/samplers/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>

#include "runtime/samplers/noise_table.h"

namespace tessera::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Refusal(const SamplerConfig& config, int steps, const ScheduleOptions& options = {}) {
  const absl::StatusOr<Schedule> schedule = MakeSchedule(config, steps, options);
  EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(schedule.status().message());
}

const SamplerOptions kAllClasses[] = {DdpmOptions{}, DdimOptions{}, EulerOptions{}, DpmSolverOptions{},
                                      FlowEulerOptions{}};

TEST(MakeScheduleTest, NoStepsAndMoreStepsThanTrainedAreRefused) {
  for (const SamplerOptions& sampler : kAllClasses) {
    const SamplerConfig config = DefaultSamplerConfig(sampler);
    EXPECT_THAT(Refusal(config, 0), HasSubstr("steps is 0; it must be 1 to 1000"));
    EXPECT_THAT(Refusal(config, -3), HasSubstr("steps is -3"));
    EXPECT_THAT(Refusal(config, 1001), HasSubstr("steps is 1001; it must be 1 to 1000"));
  }
}

TEST(MakeScheduleTest, EveryNumberOfStepsGivesThatManyFallingTimesteps) {
  for (const SamplerOptions& sampler : kAllClasses) {
    for (TimestepSpacing spacing :
         {TimestepSpacing::kLinspace, TimestepSpacing::kLeading, TimestepSpacing::kTrailing}) {
      SamplerConfig config = DefaultSamplerConfig(sampler);
      if (auto* table = config.Find<NoiseTable>()) table->timestep_spacing = spacing;
      for (int steps = 1; steps <= 500; ++steps) {
        const absl::StatusOr<Schedule> schedule = MakeSchedule(config, steps, {});
        ASSERT_TRUE(schedule.ok()) << schedule.status();
        ASSERT_EQ(static_cast<int>(schedule->timesteps.size()), steps);
        ASSERT_GE(schedule->timesteps.back(), 0);
        ASSERT_LE(schedule->timesteps.front(), 1000);
        for (int i = 1; i < steps; ++i) ASSERT_LT(schedule->timesteps[i], schedule->timesteps[i - 1]);
      }
    }
  }
}

// 1000 / 61 in floating point is slightly too small: counting down from 1000 leaves a 62nd value above 0.
TEST(MakeScheduleTest, TrailingTimestepsDoNotRunBelowTheFirst) {
  SamplerConfig config = DefaultSamplerConfig(DdimOptions{});
  config.Find<NoiseTable>()->timestep_spacing = TimestepSpacing::kTrailing;
  const absl::StatusOr<Schedule> schedule = MakeSchedule(config, 61, {});
  ASSERT_TRUE(schedule.ok());
  EXPECT_EQ(schedule->timesteps.size(), 61u);
  EXPECT_EQ(schedule->timesteps.front(), 999);
  EXPECT_EQ(schedule->timesteps.back(), 15);
}

TEST(MakeScheduleTest, AnOffsetBeyondTheTableIsRefused) {
  SamplerConfig config = DefaultSamplerConfig(DdpmOptions{});
  config.Find<NoiseTable>()->steps_offset = 1;
  EXPECT_TRUE(MakeSchedule(config, 500, {}).ok());
  EXPECT_THAT(Refusal(config, 1000), HasSubstr("timestep 1000"));
}

TEST(MakeScheduleTest, CoincidingLevelsOfAMultistepSolverAreRefused) {
  SamplerConfig config = DefaultSamplerConfig(DpmSolverOptions{});
  EXPECT_TRUE(MakeSchedule(config, 999, {}).ok());
  EXPECT_THAT(Refusal(config, 1000), HasSubstr("take fewer steps"));
  config.Find<NoiseTable>()->timestep_spacing = TimestepSpacing::kLeading;
  EXPECT_THAT(Refusal(config, 1000), HasSubstr("take fewer steps"));
}

TEST(MakeScheduleTest, NoisePredictionCannotBeginAtPureNoise) {
  SamplerConfig config = DefaultSamplerConfig(DdimOptions{});
  config.Find<NoiseTable>()->rescale_betas_zero_snr = true;
  config.Find<NoiseTable>()->timestep_spacing = TimestepSpacing::kTrailing;
  EXPECT_THAT(Refusal(config, 20), HasSubstr("rescale_betas_zero_snr"));
  config.prediction_type = PredictionType::kVelocity;
  EXPECT_TRUE(MakeSchedule(config, 20, {}).ok());
}

TEST(MakeScheduleTest, DynamicShiftingNeedsMu) {
  SamplerConfig config = DefaultSamplerConfig(FlowEulerOptions{});
  config.Find<DynamicShift>()->use_dynamic_shifting = true;
  EXPECT_THAT(Refusal(config, 4), HasSubstr("mu"));
  EXPECT_THAT(Refusal(config, 4, {.mu = std::nan("")}), HasSubstr("finite"));
  config.Find<DynamicShift>()->time_shift_type = TimeShiftType::kLinear;
  EXPECT_THAT(Refusal(config, 4, {.mu = -1.0}), HasSubstr("above 0"));
}

TEST(MakeScheduleTest, GivenSigmasAreChecked) {
  const SamplerConfig flow = DefaultSamplerConfig(FlowEulerOptions{});
  EXPECT_THAT(Refusal(flow, 2, {.sigmas = {{1.0, 0.5, 0.2}}}), HasSubstr("3 values; it must have 2"));
  EXPECT_THAT(Refusal(flow, 2, {.sigmas = {{1.0, 0.0}}}), HasSubstr("above 0"));
  EXPECT_THAT(Refusal(flow, 2, {.sigmas = {{1.5, 1.0}}}), HasSubstr("at most 1"));
  EXPECT_THAT(Refusal(DefaultSamplerConfig(EulerOptions{}), 2, {.sigmas = {{1.0, 0.5}}}), HasSubstr("euler"));
}

TEST(MakeScheduleTest, ATerminalShiftOfOneStepIsRefused) {
  SamplerConfig config = DefaultSamplerConfig(FlowEulerOptions{});
  config.Find<FlowLevels>()->shift_terminal = 0.1;
  EXPECT_THAT(Refusal(config, 1), HasSubstr("at least 2 steps"));
  EXPECT_NEAR(MakeSchedule(config, 5, {})->sigmas[4], 0.1, 1e-6);
}

// Formula (5) of Karras 2022 with given limits.
TEST(MakeScheduleTest, KarrasSigmasTakeTheirEndsFromTheConfig) {
  SamplerConfig config = DefaultSamplerConfig(EulerOptions{});
  config.Find<SigmaSpacing>()->use_karras_sigmas = true;
  config.Find<SigmaSpacing>()->sigma_min = 0.1;
  config.Find<SigmaSpacing>()->sigma_max = 10;
  const absl::StatusOr<Schedule> schedule = MakeSchedule(config, 3, {});
  ASSERT_TRUE(schedule.ok());
  const double middle = std::pow((std::pow(0.1, 1.0 / 7) + std::pow(10, 1.0 / 7)) / 2, 7);
  EXPECT_THAT(schedule->sigmas, testing::Pointwise(testing::DoubleNear(1e-5), {10.0, middle, 0.1, 0.0}));
}

// The timesteps are those of the reference library for lambda_min_clipped = -5.1 with the default linear table and 5
// steps.
TEST(MakeScheduleTest, ClippingTheSignalToNoiseRatioCutsTimestepsOff) {
  SamplerConfig config = DefaultSamplerConfig(DpmSolverOptions{});
  EXPECT_EQ(MakeSchedule(config, 5, {})->timesteps.front(), 999);
  config.Find<DpmSolverOptions>()->lambda_min_clipped = -4.0;
  const absl::StatusOr<Schedule> schedule = MakeSchedule(config, 5, {});
  ASSERT_TRUE(schedule.ok());
  const double sigma = schedule->sigmas.front();
  EXPECT_GE(-std::log(sigma), -4.0);
  EXPECT_LT(-std::log(SigmaTable(config)[static_cast<size_t>(schedule->timesteps.front()) + 1]), -4.0);
  config.Find<DpmSolverOptions>()->lambda_min_clipped = std::numeric_limits<double>::infinity();
  EXPECT_THAT(Refusal(config, 5), HasSubstr("lambda_min_clipped"));
}

TEST(NoiseTableTest, RescalingLeavesNoSignalAtTheLastTimestep) {
  SamplerConfig config = DefaultSamplerConfig(DdpmOptions{});
  const float first = AlphasCumprod(config).front();
  config.Find<NoiseTable>()->rescale_betas_zero_snr = true;
  EXPECT_EQ(AlphasCumprod(config).back(), 0.0f);
  EXPECT_FLOAT_EQ(AlphasCumprod(config).front(), first);
  config.options = EulerOptions{};
  config.Find<NoiseTable>()->rescale_betas_zero_snr = true;
  EXPECT_EQ(AlphasCumprod(config).back(), 0x1p-24f);
}

TEST(NoiseTableTest, TrainedBetasReplaceTheSchedule) {
  SamplerConfig config = DefaultSamplerConfig(DdpmOptions{});
  config.num_train_timesteps = 3;
  config.Find<NoiseTable>()->trained_betas = {0.5, 0.25, 0.5};
  EXPECT_THAT(AlphasCumprod(config), ElementsAre(0.5f, 0.375f, 0.1875f));
}

TEST(NoiseTableTest, ReferenceLogsAreWithinTwoUnitsInTheLastPlace) {
  std::vector<float> values;
  for (float value = 1e-4f; value < 1e4f; value *= 1.01f) values.push_back(value);
  const std::vector<float> logs = ReferenceLogs(values);
  for (size_t i = 0; i < values.size(); ++i) {
    const double exact = std::log(static_cast<double>(values[i]));
    EXPECT_NEAR(logs[i], exact, 2.4e-7 * std::max(1.0, std::fabs(exact))) << values[i];
  }
}

}  // namespace
}  // namespace tessera::runtime
