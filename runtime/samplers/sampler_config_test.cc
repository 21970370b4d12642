#include "runtime/samplers/sampler_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"

namespace tessera::runtime {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

absl::StatusOr<SamplerConfig> Parse(std::string_view text) {
  absl::StatusOr<base::ConfigReader> reader = base::ConfigReader::FromText(text, "scheduler_config.json");
  if (!reader.ok()) return reader.status();
  return ParseSamplerConfig(*reader);
}

SamplerConfig Parsed(std::string_view text) {
  absl::StatusOr<SamplerConfig> config = Parse(text);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : SamplerConfig{};
}

std::string Refusal(std::string_view text) { return std::string(Parse(text).status().message()); }

SamplerConfig ModelConfig(const std::string& pipeline) {
  const std::string path = "tests/golden/pipelines/" + pipeline + "/scheduler/scheduler_config.json";
  absl::StatusOr<base::ConfigReader> reader = base::ConfigReader::FromFile(path, "scheduler_config.json");
  EXPECT_TRUE(reader.ok()) << reader.status();
  absl::StatusOr<SamplerConfig> config = ParseSamplerConfig(*reader);
  EXPECT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(reader->UnknownFields(), ElementsAre());
  return *config;
}

TEST(ParseSamplerConfigTest, AbsentFieldsHaveTheClassesDefaults) {
  const SamplerConfig ddpm = Parsed(R"({"_class_name": "DDPMScheduler"})");
  EXPECT_EQ(ddpm.Find<NoiseTable>()->timestep_spacing, TimestepSpacing::kLeading);
  EXPECT_TRUE(ddpm.Find<Clipping>()->clip_sample);
  const SamplerConfig dpm = Parsed(R"({"_class_name": "DPMSolverMultistepScheduler"})");
  EXPECT_EQ(dpm.Find<NoiseTable>()->timestep_spacing, TimestepSpacing::kLinspace);
  EXPECT_EQ(dpm.Find<DpmSolverOptions>()->solver_order, 2);
  EXPECT_EQ(Parsed(R"({"_class_name": "FlowMatchEulerDiscreteScheduler"})").prediction_type, PredictionType::kFlow);
}

TEST(ParseSamplerConfigTest, NullMeansTheDefault) {
  const SamplerConfig config = Parsed(
      R"({"_class_name": "EulerDiscreteScheduler", "timestep_spacing": null, "beta_end": null, "sigma_min": null})");
  EXPECT_EQ(config.Find<NoiseTable>()->timestep_spacing, TimestepSpacing::kLinspace);
  EXPECT_EQ(config.Find<NoiseTable>()->beta_end, 0.02);
  EXPECT_FALSE(config.Find<SigmaSpacing>()->sigma_min.has_value());
}

TEST(ParseSamplerConfigTest, TheModelsOfTheGoldensAreRead) {
  EXPECT_EQ(SamplerName(ModelConfig("pixart_alpha")), "dpm++2");
  EXPECT_EQ(SamplerName(ModelConfig("hunyuan11")), "ddpm");
  EXPECT_EQ(SamplerName(ModelConfig("dit")), "ddim");
  EXPECT_EQ(SamplerName(ModelConfig("sd3")), "flow-euler");
  EXPECT_EQ(ModelConfig("sd3").Find<FlowLevels>()->shift, 3.0);
  EXPECT_TRUE(ModelConfig("flux_dev").Find<DynamicShift>()->use_dynamic_shifting);
  EXPECT_EQ(ModelConfig("hunyuan12").Find<NoiseTable>()->beta_end, 0.018);
  EXPECT_EQ(ModelConfig("hunyuan12").prediction_type, PredictionType::kVelocity);
}

TEST(ParseSamplerConfigTest, UnknownFieldsAreReported) {
  absl::StatusOr<base::ConfigReader> reader =
      base::ConfigReader::FromText(R"({"_class_name": "DDIMScheduler", "beta_strat": 0.1})", "scheduler_config.json");
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE(ParseSamplerConfig(*reader).ok());
  EXPECT_THAT(reader->UnknownFields(), ElementsAre("beta_strat"));
}

struct BadConfig {
  const char* name;
  const char* text;
  std::vector<std::string> message;  // parts that it must contain: field, value, valid values
};

class RefusalTest : public testing::TestWithParam<BadConfig> {};

TEST_P(RefusalTest, NamesTheFieldItsValueAndWhatIsValid) {
  const std::string message = Refusal(GetParam().text);
  for (const std::string& part : GetParam().message) EXPECT_THAT(message, HasSubstr(part));
}

INSTANTIATE_TEST_SUITE_P(
    ParseSamplerConfigTest, RefusalTest,
    testing::Values(
        BadConfig{"UnknownClass",
                  R"({"_class_name": "UniPCMultistepScheduler"})",
                  {"_class_name", "UniPCMultistepScheduler", "DPMSolverMultistepScheduler"}},
        BadConfig{"NoClass", R"({"beta_start": 0.1})", {"_class_name"}},
        BadConfig{"UnknownSchedule",
                  R"({"_class_name": "DDPMScheduler", "beta_schedule": "cubic"})",
                  {"beta_schedule", "cubic", "linear, scaled_linear, squaredcos_cap_v2"}},
        BadConfig{"ScheduleOfAnotherClass",
                  R"({"_class_name": "DDIMScheduler", "beta_schedule": "sigmoid"})",
                  {"beta_schedule", "sigmoid", "linear, scaled_linear or squaredcos_cap_v2"}},
        BadConfig{"BetaSigmas",
                  R"({"_class_name": "EulerDiscreteScheduler", "use_beta_sigmas": true})",
                  {"use_beta_sigmas", "true", "false", "use_karras_sigmas"}},
        BadConfig{"LuLambdas",
                  R"({"_class_name": "DPMSolverMultistepScheduler", "use_lu_lambdas": true})",
                  {"use_lu_lambdas", "true", "false"}},
        BadConfig{"TwoKindsOfSigmas",
                  R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "use_karras_sigmas": true,
                      "use_exponential_sigmas": true})",
                  {"use_karras_sigmas", "use_exponential_sigmas"}},
        BadConfig{"PlainSolverToZero",
                  R"({"_class_name": "DPMSolverMultistepScheduler", "algorithm_type": "dpmsolver"})",
                  {"final_sigmas_type", "zero", "sigma_min"}},
        BadConfig{"StochasticPlainSolverOfOrder3",
                  R"({"_class_name": "DPMSolverMultistepScheduler", "algorithm_type": "sde-dpmsolver",
                      "final_sigmas_type": "sigma_min", "solver_order": 3})",
                  {"solver_order", "3", "1 or 2"}},
        BadConfig{"Order4",
                  R"({"_class_name": "DPMSolverMultistepScheduler", "solver_order": 4})",
                  {"solver_order", "4", "1", "3"}},
        BadConfig{"LearnedVariance",
                  R"({"_class_name": "DDPMScheduler", "variance_type": "learned_range"})",
                  {"variance_type", "learned_range", "fixed_small"}},
        BadConfig{"FlowPredictionForDdim",
                  R"({"_class_name": "DDIMScheduler", "prediction_type": "flow_prediction"})",
                  {"prediction_type", "flow_prediction", "v_prediction"}},
        BadConfig{"FlowPredictionWithoutFlowSigmas",
                  R"({"_class_name": "DPMSolverMultistepScheduler", "prediction_type": "flow_prediction"})",
                  {"prediction_type", "use_flow_sigmas"}},
        BadConfig{"BetasOfTheWrongNumber",
                  R"({"_class_name": "DDPMScheduler", "trained_betas": [0.1, 0.2]})",
                  {"trained_betas", "2 values", "1000"}},
        BadConfig{"BetaAboveOne",
                  R"({"_class_name": "DDPMScheduler", "num_train_timesteps": 2, "trained_betas": [0.1, 1.5]})",
                  {"trained_betas", "1.5", "(0, 1)"}},
        BadConfig{
            "NegativeShift", R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": -1})", {"shift", "-1"}},
        BadConfig{"HugeTable",
                  R"({"_class_name": "DDPMScheduler", "num_train_timesteps": 1000000000})",
                  {"num_train_timesteps", "1000000000"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(WithSamplerTest, AFlowModelTakesOnlyFlowSamplers) {
  const SamplerConfig model = ModelConfig("sd3");
  EXPECT_THAT(ValidSamplers(model), ElementsAre("flow-euler", "dpm++", "dpm++1", "dpm++2", "dpm++3", "dpm++-sde"));
  const absl::Status status = WithSampler(model, "ddim").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("ddim"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("flow-euler, dpm++"));
}

TEST(WithSamplerTest, ANoiseModelTakesNoFlowSampler) {
  const SamplerConfig model = ModelConfig("pixart_sigma");
  EXPECT_THAT(ValidSamplers(model), Not(Contains("flow-euler")));
  const absl::Status status = WithSampler(model, "flow-euler").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("dpm++2-karras"));
}

TEST(WithSamplerTest, EveryValidNameWorks) {
  for (const char* pipeline : {"pixart_alpha", "hunyuan11", "dit", "sd3", "flux_dev"}) {
    const SamplerConfig model = ModelConfig(pipeline);
    for (const std::string& name : ValidSamplers(model)) {
      const absl::StatusOr<SamplerConfig> config = WithSampler(model, name);
      ASSERT_TRUE(config.ok()) << pipeline << " " << name << " " << config.status();
      EXPECT_EQ(IsFlow(*config), IsFlow(model)) << pipeline << " " << name;
      EXPECT_EQ(config->prediction_type, model.prediction_type) << pipeline << " " << name;
      // Without a number they keep the config's order, which is 2.
      const std::string expected = name == "dpm++" ? "dpm++2" : name == "dpm++-karras" ? "dpm++2-karras" : name;
      EXPECT_EQ(SamplerName(*config), expected) << pipeline;
    }
  }
}

TEST(WithSamplerTest, FieldsOfTheFileAreCarriedOverAndTheOthersTakeTheNewClassesDefault) {
  const SamplerConfig spelled =
      Parsed(R"({"_class_name": "DPMSolverMultistepScheduler", "timestep_spacing": "linspace", "beta_start": 0.001})");
  EXPECT_EQ(WithSampler(spelled, "ddim")->Find<NoiseTable>()->timestep_spacing, TimestepSpacing::kLinspace);
  EXPECT_EQ(WithSampler(spelled, "ddim")->Find<NoiseTable>()->beta_start, 0.001);
  const SamplerConfig silent = Parsed(R"({"_class_name": "DPMSolverMultistepScheduler"})");
  EXPECT_EQ(WithSampler(silent, "ddim")->Find<NoiseTable>()->timestep_spacing, TimestepSpacing::kLeading);
}

// The trajectories with another sampler record the configuration that the reference derived from the model's.
TEST(WithSamplerTest, AgreesWithTheReferencesConfigurationsOfTheTrajectories) {
  const absl::StatusOr<std::string> text = base::ReadWholeFile("tests/golden/cases.json", "cases.json", 64 << 20);
  ASSERT_TRUE(text.ok());
  const absl::StatusOr<base::Json> manifest = base::ParseJson(*text, "cases.json");
  ASSERT_TRUE(manifest.ok());
  const struct {
    const char* file;
    const char* pipeline;
    const char* sampler;
  } kCases[] = {{"trajectories/hunyuan11.2.safetensors", "hunyuan11", "dpm++"},
                {"trajectories/hunyuan12.2.safetensors", "hunyuan12", "ddim"},
                {"trajectories/dit.2.safetensors", "dit", "dpm++"}};
  int found = 0;
  for (const base::Json& entry : manifest->Find("cases")->items()) {
    for (const auto& [file, pipeline, sampler] : kCases) {
      if (*entry.Find("file")->AsString() != file) continue;
      ++found;
      const base::Json& expected = *entry.Find("arguments")->Find("scheduler_config");
      const absl::StatusOr<SamplerConfig> config = WithSampler(ModelConfig(pipeline), sampler);
      ASSERT_TRUE(config.ok()) << config.status();
      const NoiseTable& table = *config->Find<NoiseTable>();
      EXPECT_EQ(table.beta_start, expected.Find("beta_start")->AsNumber()) << file;
      EXPECT_EQ(table.beta_end, expected.Find("beta_end")->AsNumber()) << file;
      EXPECT_EQ(table.beta_schedule == BetaSchedule::kScaledLinear,
                *expected.Find("beta_schedule")->AsString() == "scaled_linear")
          << file;
      EXPECT_EQ(PredictionTypeName(config->prediction_type), *expected.Find("prediction_type")->AsString()) << file;
      EXPECT_EQ(table.timestep_spacing == TimestepSpacing::kLeading,
                *expected.Find("timestep_spacing")->AsString() == "leading")
          << file;
      EXPECT_EQ(table.steps_offset, expected.Find("steps_offset")->AsInt()) << file;
      if (const base::Json* clip =
              expected.Find("clip_sample")) {  // DPM-Solver has no such option, but passes it on to a class that has
        EXPECT_EQ(WithSampler(*config, "ddim")->Find<Clipping>()->clip_sample, clip->AsBool()) << file;
      }
    }
  }
  EXPECT_EQ(found, 3);
}

TEST(WithSamplerTest, AFlowModelsShiftIsKept) {
  const absl::StatusOr<SamplerConfig> solver = WithSampler(ModelConfig("sd3"), "dpm++3");
  ASSERT_TRUE(solver.ok()) << solver.status();
  EXPECT_TRUE(solver->Find<DpmSolverOptions>()->use_flow_sigmas);
  EXPECT_EQ(solver->Find<DpmSolverOptions>()->flow_shift, 3.0);
  EXPECT_EQ(WithSampler(*solver, "flow-euler")->Find<FlowLevels>()->shift, 3.0);
}

}  // namespace
}  // namespace tessera::runtime
