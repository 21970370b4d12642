// Tests the training of an adapter on a distilled model with an assistant adapter: it must equal training on weights
// into which the assistant was merged, and the result must not contain the assistant.
//
// In fp64, where both differ only in the order of sums: 1e-10 of the largest value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/macros/status_macros.h"
#include "models/adapters/adapter.h"
#include "models/loading/weight_loader.h"
#include "models/weights/safetensors_writer.h"
#include "models/weights/weight_folder.h"
#include "runtime/training/exports/adapter_file.h"
#include "tests/support/random_tensor.h"
#include "tests/support/trainer_runs.h"

namespace tessera::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Result = TrainerRuns::Result;

constexpr char kModel[] = "flux_schnell";
constexpr double kAlpha = 3;
constexpr int64_t kRank = 2;

// A module that is trained as well, one that is not, and one of the frame.
const std::vector<std::string>& Modules() {
  static const std::vector<std::string> modules = {"transformer_blocks.0.attn.to_q",
                                                   "single_transformer_blocks.0.proj_mlp", "context_embedder"};
  return modules;
}

std::string WeightsPath(const std::string& model) { return model + "/transformer/diffusion_pytorch_model.safetensors"; }

// A copy of the model, with the assistant adapter merged into its weights, and that adapter.
class AssistantTest : public ::testing::Test {
 protected:
  AssistantTest() : runs_(kModel) {
    std::filesystem::copy(GoldenPipeline(kModel), merged(), std::filesystem::copy_options::recursive);
    const absl::Status written = Write();
    EXPECT_TRUE(written.ok()) << written;
  }

  std::string merged() const { return runs_.files() / "merged"; }
  std::string assistant() const { return runs_.files() / "assistant.safetensors"; }

  control::TrainConfig Config(const std::string& output) const {
    control::TrainConfig config = runs_.Config(output);
    config.network = {.type = control::NetworkType::kLora, .linear = 4, .linear_alpha = 8};
    config.train.assistant_adapter = assistant();
    return config;
  }

  Result Run(const control::TrainConfig& config, const std::string& checkpoint = "") const {
    const std::vector<Result> ranks = runs_.Run(config, 3, checkpoint);
    for (const Result& rank : ranks) {
      if (!rank.status.ok()) return rank;
    }
    return ranks.front();
  }

  TrainerRuns runs_;

 private:
  absl::Status Write() {
    ASSIGN_OR_RETURN(const models::WeightFolder weights,
                     models::WeightFolder::Open(GoldenPipeline(kModel) + "/transformer", "transformer"));
    std::vector<models::TensorEntry> entries;
    for (const auto& [name, location] : weights.tensors()) {
      entries.push_back({.name = name, .type = models::StoredType::kF64, .shape = location.tensor.shape});
    }
    std::filesystem::remove_all(merged() + "/transformer/diffusion_pytorch_model.safetensors");
    ASSIGN_OR_RETURN(models::SafetensorsWriter writer,
                     models::SafetensorsWriter::Create(WeightsPath(merged()), entries, {}));
    AdapterExport adapter{.modules = {}, .base_digest = std::string(64, '0'), .step = 1, .prediction_type = ""};
    for (const auto& [name, location] : weights.tensors()) {
      const at::Tensor stored = at::empty(location.tensor.shape, *models::TorchType(location.tensor.type));
      RETURN_IF_ERROR(weights.Read(location, 0, {static_cast<std::byte*>(stored.data_ptr()), stored.nbytes()}));
      at::Tensor value = stored.to(at::kDouble);
      absl::string_view module = name;
      if (absl::ConsumeSuffix(&module, ".weight") &&
          std::ranges::find(Modules(), std::string(module)) != Modules().end()) {
        const at::Tensor a = Random({kRank, value.size(1)}, 50 + adapter.modules.size()).to(at::kFloat),
                         b = (Random({value.size(0), kRank}, 80 + adapter.modules.size()) / 20).to(at::kFloat);
        value = value + kAlpha / kRank * b.to(at::kDouble).mm(a.to(at::kDouble));
        adapter.modules.push_back({.name = std::string(module), .a = a, .b = b, .alpha = kAlpha});
      }
      value = value.contiguous();
      RETURN_IF_ERROR(writer.Append(name, {static_cast<const std::byte*>(value.data_ptr()), value.nbytes()}));
    }
    EXPECT_EQ(adapter.modules.size(), Modules().size());
    RETURN_IF_ERROR(writer.Finish().status());
    return WritePeftFile(assistant(), adapter);
  }
};

// Returns the factors of an exported adapter by module.
std::map<std::string, parallel::LowRankFactors> FactorsOf(const Result& result) {
  const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(GoldenPipeline(kModel));
  const models::FamilyDescription described = *(*models::FindFamily(folder->class_name()))->describe(*folder);
  absl::StatusOr<models::Adapter> adapter =
      models::ReadAdapter(result.saved.exported, described.adaptable, {.dtype = at::kDouble});
  EXPECT_TRUE(adapter.ok()) << adapter.status();
  return adapter.ok() ? adapter->components["transformer"] : std::map<std::string, parallel::LowRankFactors>();
}

TEST_F(AssistantTest, TrainsAsOnMergedWeightsAndIsNotInTheResult) {
  const Result assisted = Run(Config("assisted"));
  ASSERT_TRUE(assisted.status.ok()) << assisted.status;
  control::TrainConfig on_merged = Config("on_merged");
  on_merged.model = merged();
  on_merged.train.assistant_adapter = "";
  on_merged.train.break_distillation = true;
  const Result merged_result = Run(on_merged);
  ASSERT_TRUE(merged_result.status.ok()) << merged_result.status;
  ASSERT_EQ(assisted.steps.size(), 3u);
  for (size_t i = 0; i < assisted.steps.size(); ++i) {
    EXPECT_NEAR(assisted.steps[i].loss, merged_result.steps[i].loss, 1e-10 * merged_result.steps[i].loss);
    EXPECT_NEAR(assisted.steps[i].gradient_norm, merged_result.steps[i].gradient_norm,
                1e-9 * merged_result.steps[i].gradient_norm);
  }
  const std::map<std::string, parallel::LowRankFactors> own = FactorsOf(assisted), expected = FactorsOf(merged_result);
  ASSERT_EQ(own.size(), expected.size());
  EXPECT_FALSE(own.contains("context_embedder"));
  for (const auto& [module, factors] : expected) {
    // The export is in fp32.
    EXPECT_LE((own.at(module).b - factors.b).abs().max().item<double>(), 1e-6) << module;
    EXPECT_LE((own.at(module).a - factors.a).abs().max().item<double>(), 1e-6) << module;
  }
  // Without the assistant the run is another one.
  control::TrainConfig alone = Config("alone");
  alone.train.assistant_adapter = "";
  alone.train.break_distillation = true;
  const Result broken = Run(alone);
  ASSERT_TRUE(broken.status.ok()) << broken.status;
  EXPECT_GT(std::abs(broken.steps[0].loss - assisted.steps[0].loss), 1e-3 * assisted.steps[0].loss);
}

TEST_F(AssistantTest, SamplesAreMadeWithoutIt) {
  for (const Result& rank : runs_.Run(Config("samples"), "", [&](Trainer&trainer, Result&result) -> absl::Status {
         RETURN_IF_ERROR(TrainerRuns::Train(trainer, 1, result));
         const models::SharedAdapters adapters = trainer.adapters();
         for (const auto& [module, factors] : adapters->Of("transformer")->modules()) {
           EXPECT_EQ(factors.size(), 1u) << module;
           EXPECT_EQ(factors[0].a.size(0), 4) << module << " must have the factors of the trained adapter";
         }
         EXPECT_EQ(adapters->Of("transformer")->Find("context_embedder"), nullptr);
         return absl::OkStatus();
       })) {
    EXPECT_TRUE(rank.status.ok()) << rank.status;
  }
}

TEST_F(AssistantTest, EveryTopologyTakesTheSameSteps) {
  const Result serial = Run(Config("serial"));
  ASSERT_TRUE(serial.status.ok()) << serial.status;
  for (const control::TrainParallelism& parallelism :
       {control::TrainParallelism{.tensor = 2, .sequence_parallel = true},
        {.ulysses = 2},
        {.data = 2, .zero = control::ZeroStage::kFull}}) {
    control::TrainConfig config = Config(absl::StrCat("ranks", parallelism.tensor, parallelism.ulysses));
    config.parallelism = parallelism;
    const Result own = Run(config);
    ASSERT_TRUE(own.status.ok()) << own.status;
    for (size_t i = 0; i < serial.steps.size(); ++i) {
      EXPECT_NEAR(own.steps[i].loss, serial.steps[i].loss, 1e-10 * serial.steps[i].loss);
      EXPECT_NEAR(own.steps[i].gradient_norm, serial.steps[i].gradient_norm, 1e-9 * serial.steps[i].gradient_norm);
    }
  }
}

TEST_F(AssistantTest, ADistilledModelIsNotTrainedWithoutOneOrConsent) {
  control::TrainConfig config = Config("none");
  config.train.assistant_adapter = "";
  EXPECT_THAT(std::string(Run(config).status.message()),
              AllOf(HasSubstr("train FLUX.1-dev in its place"), HasSubstr("train.assistant_adapter")));
}

TEST_F(AssistantTest, ARunResumesWithTheSameOneOnly) {
  control::TrainConfig config = Config("resumed");
  config.train.steps = 100;
  ASSERT_TRUE(Run(config).status.ok());
  // Another path to the same file is the same adapter.
  std::filesystem::copy(assistant(), runs_.files() / "moved.safetensors");
  config.train.assistant_adapter = runs_.files() / "moved.safetensors";
  EXPECT_TRUE(Run(config, "latest").status.ok());
  const absl::StatusOr<std::string> digest = models::AdapterDigest(assistant());
  ASSERT_TRUE(digest.ok());
  AdapterExport other{
      .modules = {{.name = Modules()[0], .a = at::ones({1, 64}, at::kFloat), .b = at::ones({64, 1}, at::kFloat)}},
      .base_digest = *digest,
      .step = 2,
      .prediction_type = ""};
  ASSERT_TRUE(WritePeftFile(assistant(), other).ok());
  config.train.assistant_adapter = assistant();
  EXPECT_THAT(std::string(Run(config, "latest").status.message()), HasSubstr("another train.assistant_adapter"));
  config.train.assistant_adapter = "";
  config.train.break_distillation = true;
  EXPECT_THAT(std::string(Run(config, "latest").status.message()),
              HasSubstr("was trained with train.assistant_adapter, which is missing"));
}

TEST_F(AssistantTest, AFileThatIsNotForTheModelIsRefusedByTheKey) {
  control::TrainConfig config = Config("missing");
  config.train.assistant_adapter = runs_.files() / "absent.safetensors";
  EXPECT_THAT(std::string(Run(config).status.message()),
              AllOf(HasSubstr("train.assistant_adapter is "), HasSubstr("absent.safetensors")));
}

}  // namespace
}  // namespace tessera::runtime
