// Tests the prediction type of a training run, from its samples to its exports.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/parameters/adapter_use.h"
#include "control/parameters/load_parameters.h"
#include "control/parameters/loaded.h"
#include "control/protocol/job_replies.h"
#include "models/adapters/adapter.h"
#include "models/adapters/plan/adapter_files.h"
#include "models/weights/safetensors.h"
#include "runtime/engine/engine.h"
#include "tests/support/trainer_runs.h"

namespace tessera::runtime {
namespace {

namespace fs = std::filesystem;

constexpr char kScheduler[] = "scheduler/scheduler_config.json";
constexpr char kBase[] = "tests/golden/pipelines/pixart_sigma";  // its scheduler has epsilon

class PredictionTypeTest : public testing::Test {
 protected:
  struct Run {
    std::vector<double> sample;  // latents of a job during the training
    std::string exported, checkpoint;
  };

  control::TrainConfig Config(control::NetworkType type, control::TrainedPrediction prediction_type) const {
    control::TrainConfig config =
        runs_.Config(absl::StrCat(base::EnumName(type), "_", base::EnumName(prediction_type)));
    config.network.type = type;
    config.network.linear = 2;
    config.train.dtype = control::TrainDtype::kFp32;
    config.train.prediction_type = prediction_type;
    return config;
  }

  static absl::StatusOr<std::vector<double>> LatentsOf(Engine& engine,
                                                       const std::vector<control::AdapterUse>& adapters) {
    RETURN_IF_ERROR(engine
                        .StartJob(1, {.prompt = "red apple",
                                      .height = 64,
                                      .width = 64,
                                      .steps = 2,
                                      .guidance_scale = 1,
                                      .seed = 1,
                                      .adapters = adapters})
                        .status());
    for (int step = 0; step < 2; ++step) {
      ASSIGN_OR_RETURN(const control::Stepping stepping, engine.Step({uint64_t{1}}));
      RETURN_IF_ERROR(stepping().status());
    }
    ASSIGN_OR_RETURN(const control::LatentValues latents, engine.Latents(1));
    RETURN_IF_ERROR(engine.EndJob(1));
    return latents.values;
  }

  static absl::StatusOr<Run> Train(const control::TrainConfig& config) {
    Run run;
    Engine engine(WorkerRank{});
    RETURN_IF_ERROR(engine.Load({.model = config.model, .training = true}).status());
    ASSIGN_OR_RETURN(const control::TrainingStarted started,
                     engine.StartTraining({.config = control::TrainConfigJson(config)}));
    RETURN_IF_ERROR(engine.PrepareSamples(started.samples).status());
    RETURN_IF_ERROR(engine.Train().status());
    ASSIGN_OR_RETURN(run.sample, LatentsOf(engine, {}));
    ASSIGN_OR_RETURN(const control::TrainingSaved saved, engine.SaveTraining(/*exports=*/true));
    run.exported = saved.exported;
    run.checkpoint = saved.checkpoint;
    return run;
  }

  static absl::StatusOr<std::vector<double>> Served(const std::string& model, const std::string& adapter) {
    Engine engine(WorkerRank{});
    RETURN_IF_ERROR(engine.Load({.model = model}).status());
    if (adapter.empty()) return LatentsOf(engine, {});
    ASSIGN_OR_RETURN(const std::string digest, models::AdapterDigest(adapter));
    return LatentsOf(engine, {{.name = "trained", .scale = 1, .digest = digest, .file = adapter}});
  }

  static double Distance(const std::vector<double>& a, const std::vector<double>& b) {
    double worst = a.size() == b.size() ? 0 : INFINITY;
    for (size_t i = 0; i < a.size() && i < b.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
    return worst;
  }

  TrainerRuns runs_{"pixart_sigma"};
};

// In training the factors are added in a different order.
constexpr double kRounding = 1e-4;
// The weight files are F16, like the base's.
constexpr double kRoundingOfWeights = 0.05;

// Covers the adapter's file, PEFT's folder, and a checkpoint.
TEST_F(PredictionTypeTest, AnAdapterIsServedAsItsSamplesWereMade) {
  const absl::StatusOr<Run> run = Train(Config(control::NetworkType::kLora, control::TrainedPrediction::kVelocity));
  ASSERT_TRUE(run.ok()) << run.status();
  const std::string folder = run->exported.substr(0, run->exported.rfind(".safetensors"));
  for (const std::string& adapter : {run->exported, folder, run->checkpoint}) {
    const absl::StatusOr<std::vector<double>> served = Served(kBase, adapter);
    ASSERT_TRUE(served.ok()) << served.status();
    EXPECT_LT(Distance(*served, run->sample), kRounding) << adapter;
  }
  // The base without the adapter is denoised as before.
  EXPECT_GT(Distance(*Served(kBase, ""), run->sample), 0.1);
  const auto file = models::SafetensorsFile::Open(run->exported, "adapter");
  EXPECT_EQ(file->metadata().at(models::kPredictionTypeKey), "v_prediction");
}

TEST_F(PredictionTypeTest, AModelIsExportedWithASchedulerThatSaysWhatItPredicts) {
  const absl::StatusOr<Run> run = Train(Config(control::NetworkType::kFull, control::TrainedPrediction::kVelocity));
  ASSERT_TRUE(run.ok()) << run.status();
  const absl::StatusOr<std::vector<double>> served = Served(run->exported, "");
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_LT(Distance(*served, run->sample), kRoundingOfWeights);
  // All other settings of the scheduler are the base's.
  const auto of = [](const std::string& model) {
    base::ConfigReader reader = *base::ConfigReader::FromFile(model + "/" + kScheduler, "scheduler");
    return *ParseSamplerConfig(reader);
  };
  SamplerConfig exported = of(run->exported);
  const SamplerConfig base = of(kBase);
  EXPECT_EQ(exported.prediction_type, PredictionType::kVelocity);
  ASSERT_EQ(exported.file.members().size(), base.file.members().size());
  for (const base::JsonMember& member : base.file.members()) {
    const base::Json* value = exported.file.Find(member.key);
    ASSERT_NE(value, nullptr) << member.key;
    if (member.key == "prediction_type") continue;
    EXPECT_EQ(value->Describe(), member.value.Describe()) << member.key;
  }
  // With the base's scheduler the same weights generate a different picture.
  fs::copy_file(fs::path(kBase) / kScheduler, fs::path(run->exported) / kScheduler,
                fs::copy_options::overwrite_existing);
  EXPECT_GT(Distance(*Served(run->exported, ""), run->sample), 10 * kRoundingOfWeights);
}

}  // namespace
}  // namespace tessera::runtime
