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
#include <fstream>
#include <functional>
#include <iterator>
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
#include "runtime/training/trainer.h"
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

// Tests pictures that change between the scan of a run's folders and their encoding.
namespace tessera::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Result = TrainerRuns::Result;

struct Change {
  const char* name;
  std::function<void(const fs::path&)> make;
  const char* reason;  // why the picture can no longer be used
};

const Change kVanishes = {"vanishes", [](const fs::path& path) { fs::remove(path); }, ": cannot open "};
const Change kBreaks = {"breaks", [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) / 2); },
                        ": the file is cut short"};
const Change kBecomesAnother = {"becomes_another",
                                [](const fs::path& path) {
                                  fs::copy_file("tests/pictures/orientation_7.png", path,
                                                fs::copy_options::overwrite_existing);
                                },
                                ""};
const Change kChanges[] = {kVanishes, kBreaks, kBecomesAnother};

// Of the six pictures, images/2.png changes after every rank has scanned it. It is the only one in its bucket.
class ChangedPicturesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PutBack();
    fs::copy(runs_.files() / "images", runs_.files() / "without");
    fs::remove(runs_.files() / "without/2.png");
    fs::remove(runs_.files() / "without/2.txt");
  }

  fs::path Picture() const { return runs_.files() / "images/2.png"; }
  void PutBack() const {
    fs::copy_file("tests/pictures/centre_16x16.png", Picture(), fs::copy_options::overwrite_existing);
  }
  void Make(const Change& change) {
    PutBack();
    runs_.SetBeforePreparing([this, change] { change.make(Picture()); });
  }
  void MakeNone() {
    runs_.SetBeforePreparing([] {});
  }

  control::TrainConfig Config(const std::string& output) const {
    control::TrainConfig config = runs_.Config(output);
    config.datasets[0].bad_images = control::BadImages::kSkip;
    return config;
  }
  // Runs on a folder that never contained the picture.
  std::vector<Result> RunWithout(control::TrainConfig config) {
    config.output += "-without";
    config.datasets[0].folder_path = runs_.files() / "without";
    MakeNone();
    return runs_.Run(config, 3);
  }
  void ExpectTheRunWithout(const std::vector<Result>& ranks, const std::vector<Result>& without) const {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const Result &is = ranks[rank], &expected = without[rank];
      ASSERT_TRUE(is.status.ok()) << is.status;
      ASSERT_TRUE(expected.status.ok()) << expected.status;
      EXPECT_EQ(is.prepared.samples, expected.prepared.samples);
      EXPECT_EQ(is.prepared.prepared, expected.prepared.samples);
      ASSERT_EQ(is.steps.size(), expected.steps.size());
      for (size_t i = 0; i < is.steps.size(); ++i) {
        EXPECT_EQ(is.steps[i].loss, expected.steps[i].loss) << "step " << i;
        EXPECT_EQ(is.steps[i].gradient_norm, expected.steps[i].gradient_norm) << "step " << i;
      }
    }
    const auto weights = [](const Result& result) {
      return FileBytes(result.saved.exported + "/transformer/diffusion_pytorch_model.safetensors");
    };
    ASSERT_FALSE(weights(without[0]).empty());
    EXPECT_TRUE(weights(ranks[0]) == weights(without[0]));
  }
  // Matches the warning, or an error that quotes it.
  auto NamesThePicture(const Change& change) const {
    return AllOf(HasSubstr("1 image is left out: " + Picture().string() + " (the file has changed since the run began" +
                           change.reason),
                 Not(HasSubstr("restore it")));
  }

  TrainerRuns runs_{"pixart_sigma"};
};

TEST_F(ChangedPicturesTest, AreLeftOutUnderSkipAndTheRunIsThatWithoutThem) {
  control::TrainConfig config = Config("without");
  config.parallelism.data = 2;
  const std::vector<Result> without = RunWithout(config);
  for (const Change& change : kChanges) {
    SCOPED_TRACE(change.name);
    Make(change);
    config.output = runs_.files() / change.name;
    const std::vector<Result> ranks = runs_.Run(config, 3);
    ExpectTheRunWithout(ranks, without);
    for (const Result& rank : ranks) {
      EXPECT_EQ(rank.started.samples, 6);
      EXPECT_EQ(rank.prepared.samples, 5);
      EXPECT_THAT(rank.warnings, ElementsAre(NamesThePicture(change)));
    }
    // The checkpoint was trained on the remaining samples. The next scan finds the same ones unless the file is a
    // picture again.
    MakeNone();
    const Result resumed = runs_.Run(config, 1, "latest").front();
    if (*change.reason != '\0') {
      EXPECT_TRUE(resumed.status.ok()) << resumed.status;
    } else {
      EXPECT_EQ(resumed.status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(resumed.status.message()),
                  HasSubstr("was trained on images or captions that differ from those in datasets"));
    }
  }
}

TEST_F(ChangedPicturesTest, AreLeftOutOnEveryTopologyAndWhereEncodingsStayInMemory) {
  const control::TrainParallelism topologies[] = {{}, {.tensor = 2}, {.data = 2, .ulysses = 2}};
  for (const control::TrainParallelism& parallelism : topologies) {
    const std::string name = absl::StrCat("d", parallelism.data, "t", parallelism.tensor);
    SCOPED_TRACE(name);
    control::TrainConfig config = Config(name);
    config.parallelism = parallelism;
    config.datasets[0].cache_latents_to_disk = parallelism.tensor == 1;
    config.datasets[0].cache_text_embeddings = parallelism.data == 2;
    const std::vector<Result> without = RunWithout(config);
    Make(kVanishes);
    ExpectTheRunWithout(runs_.Run(config, 3), without);
  }
}

TEST_F(ChangedPicturesTest, AreLeftOutWhereTheCacheHasTheOthersAndWithTheSamplesThatItHas) {
  std::string longer = "a house";
  for (int i = 0; i < 60; ++i) longer += " and another house";
  for (const char* name : {"images/2.txt", "images/4.txt", "without/4.txt"}) runs_.files().Write(name, longer);
  // The cache has each picture, including images/2.png, at one resolution.
  control::TrainConfig config = Config("first");
  MakeNone();
  ASSERT_TRUE(runs_.Run(config, 0).front().status.ok());
  const fs::path cache = config.output + "/cache";
  config = Config("second");
  config.datasets[0].resolution = {64, 96};
  config.parallelism.data = 2;
  fs::create_directories(config.output);
  fs::copy(cache, config.output + "/cache", fs::copy_options::recursive);
  const std::vector<Result> without = RunWithout(config);
  Make(kVanishes);
  const std::vector<Result> ranks = runs_.Run(config, 3);
  ExpectTheRunWithout(ranks, without);
  for (const Result& rank : ranks) {
    EXPECT_EQ(rank.started.samples, 12);
    EXPECT_EQ(rank.prepared.samples, 10);
    EXPECT_THAT(rank.warnings,
                ElementsAre(NamesThePicture(kVanishes),
                            AllOf(HasSubstr("1 caption is longer than the model reads and will be cut: "),
                                  HasSubstr("images/4."), Not(HasSubstr("images/2.")), HasSubstr("was cut to 37"))));
  }
  // A picture whose samples are all in the cache is not read again.
  MakeNone();
  PutBack();
  config.output = runs_.files() / "third";
  ASSERT_TRUE(runs_.Run(config, 0).front().status.ok());
  Make(kVanishes);
  for (const Result& rank : runs_.Run(config, 0)) {
    EXPECT_TRUE(rank.status.ok()) << rank.status;
    EXPECT_EQ(rank.prepared.samples, 12);
  }
}

TEST_F(ChangedPicturesTest, EndTheRunOnEveryRankByNameUnlessTheyAreToBeSkipped) {
  control::TrainConfig config = Config("refused");
  config.datasets[0].bad_images = control::BadImages::kRefuse;
  config.parallelism.data = 2;
  for (const Change& change : kChanges) {
    SCOPED_TRACE(change.name);
    Make(change);
    for (const Result& rank : runs_.Run(config, 1)) {
      EXPECT_EQ(rank.status.code(), *change.name == 'v' ? absl::StatusCode::kNotFound : absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(rank.status.message()),
                  AllOf(HasSubstr(Picture().string() + ": the file has changed since the run began" + change.reason),
                        HasSubstr("; restore it, or set bad_images: skip")));
      EXPECT_TRUE(rank.steps.empty());
    }
  }
}

TEST_F(ChangedPicturesTest, EndARunThatGoesOnAndOneOfWhichNoneIsLeft) {
  control::TrainConfig config = Config("run");
  config.parallelism.data = 2;
  MakeNone();
  ASSERT_TRUE(runs_.Run(config, 1).front().status.ok());
  Make(kVanishes);
  fs::remove_all(config.output + "/cache");
  for (const Result& rank : runs_.Run(config, 1, "latest")) {
    EXPECT_EQ(rank.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(rank.status.message()),
                AllOf(HasSubstr(config.output +
                                "/checkpoint-1 was trained on images or captions that differ from those in datasets"),
                      NamesThePicture(kVanishes), HasSubstr("; restore them, or start a new run")));
  }
  PutBack();
  config.output = runs_.files() / "none";
  runs_.SetBeforePreparing([this] {
    for (const fs::directory_entry& entry : fs::directory_iterator(runs_.files() / "images")) {
      if (entry.path().extension() != ".txt") std::ofstream(entry.path()) << "text";
    }
  });
  for (const Result& rank : runs_.Run(config, 1)) {
    EXPECT_EQ(rank.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(rank.status.message()),
                AllOf(HasSubstr("no image can be used: "), HasSubstr("images/0.png: the file has changed")));
  }
}

}  // namespace
}  // namespace tessera::runtime
