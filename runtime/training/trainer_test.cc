// Tests training from the files to the steps, on ranks that are threads.
#include "runtime/training/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "runtime/training/checkpoints/checkpoint_reader.h"
#include "runtime/training/sample_cache.h"
#include "runtime/training/shared_scan.h"
#include "tests/support/trainer_runs.h"

namespace tessera::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Result = TrainerRuns::Result;

// Changes the lowest bit of the fourth byte from the end: in a file of fp32 numbers, the least significant bit of the
// last number.
void ChangeOneBit(const fs::path& path) {
  std::string bytes = FileBytes(path);
  ASSERT_GE(bytes.size(), 4u);
  bytes[bytes.size() - 4] = static_cast<char>(bytes[bytes.size() - 4] ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
}

void ExpectSameSteps(const Result& one, const Result& other) {
  ASSERT_EQ(one.steps.size(), other.steps.size());
  for (size_t i = 0; i < one.steps.size(); ++i) {
    EXPECT_EQ(one.steps[i].loss, other.steps[i].loss) << "step " << i;
    EXPECT_EQ(one.steps[i].gradient_norm, other.steps[i].gradient_norm) << "step " << i;
  }
}

std::string Weights(const Result& result) {
  return FileBytes(result.saved.exported + "/transformer/diffusion_pytorch_model.safetensors");
}

class CacheTest : public ::testing::Test {
 protected:
  // One run for all tests, whose cache the tests' runs start with.
  struct First {
    TrainerRuns runs{"pixart_sigma"};
    Result result = runs.Run(runs.Config("first"), 1).front();
  };
  static void SetUpTestSuite() { first_ = std::make_unique<First>(); }
  static void TearDownTestSuite() { first_.reset(); }

  void SetUp() override { ASSERT_TRUE(first_->result.status.ok()) << first_->result.status; }

  static fs::path FirstCache() { return first_->runs.files() / "first/cache"; }
  static void CopyCache(const fs::path& output) {
    fs::create_directories(output);
    fs::copy(FirstCache(), output / "cache", fs::copy_options::recursive);
  }
  Result Run(const control::TrainConfig& config) {
    Result result = runs_.Run(config, 1).front();
    EXPECT_TRUE(result.status.ok()) << result.status;
    return result;
  }
  Result RunWithCache(control::TrainConfig config) {
    CopyCache(config.output);
    Result result = Run(config);
    EXPECT_THAT(result.prepared.warnings, IsEmpty());
    return result;
  }
  Result RunWithCache() { return RunWithCache(runs_.Config("second")); }
  std::string ModelCopy() {
    const std::string copy = runs_.files() / "model";
    fs::copy("tests/golden/pipelines/pixart_sigma", copy, fs::copy_options::recursive);
    runs_.SetModel(copy);
    return copy;
  }

  static inline std::unique_ptr<First> first_;
  TrainerRuns runs_{"pixart_sigma"};
};

TEST_F(CacheTest, TheSameDataIsReadFromItAndTakesTheSameSteps) {
  EXPECT_EQ(first_->result.prepared.cached_pictures, 0);
  EXPECT_EQ(first_->result.prepared.cached_captions, 0);
  const Result second = RunWithCache();
  EXPECT_EQ(second.prepared.cached_pictures, 6);
  EXPECT_EQ(second.prepared.cached_captions, 6);
  ExpectSameSteps(second, first_->result);
  ASSERT_FALSE(Weights(first_->result).empty());
  EXPECT_EQ(Weights(second), Weights(first_->result));
}

TEST_F(CacheTest, EveryRankCountsWhatAllHaveRead) {
  control::TrainConfig config = runs_.Config("ranks");
  config.parallelism = {.data = 2, .ulysses = 2};
  CopyCache(config.output);
  for (const Result& rank : runs_.Run(config, 1)) {
    ASSERT_TRUE(rank.status.ok()) << rank.status;
    EXPECT_EQ(rank.prepared.cached_pictures, 6);
    EXPECT_EQ(rank.prepared.cached_captions, 6);
  }
}

TEST_F(CacheTest, WhatHasChangedIsNotReadFromIt) {
  fs::copy_file("tests/pictures/orientation_7.png", runs_.files() / "images/1.png",
                fs::copy_options::overwrite_existing);
  runs_.files().Write("images/2.txt", "another caption");
  runs_.files().Write("images/4.txt", "and one more");
  const Result second = RunWithCache();
  EXPECT_EQ(second.prepared.cached_pictures, 5);
  EXPECT_EQ(second.prepared.cached_captions, 4);
}

TEST_F(CacheTest, CaptionsThatAreCutAreCountedAndNamedWhetherTheyAreReadFromItOrNot) {
  std::string longer = "a house";
  for (int i = 0; i < 60; ++i) longer += " and another house";
  runs_.files().Write("images/2.txt", longer);
  runs_.files().Write("images/4.txt", longer);
  control::TrainConfig config = runs_.Config("second");
  for (const int64_t cached : {0, 6}) {
    config.parallelism.data = cached == 0 ? 1 : 2;
    for (const Result& rank : runs_.Run(config, 0)) {
      ASSERT_TRUE(rank.status.ok()) << rank.status;
      EXPECT_EQ(rank.prepared.cached_captions, cached);
      ASSERT_THAT(rank.warnings, SizeIs(1));
      EXPECT_THAT(rank.warnings[0],
                  AllOf(HasSubstr("2 captions are longer than the model reads and will be cut: "),
                        HasSubstr("images/2.png, "), HasSubstr("images/4."), HasSubstr("was cut to 37")));
    }
  }
}

TEST_F(CacheTest, NorWhatIsBroughtToAnotherBucket) {
  control::TrainConfig config = runs_.Config("second");
  config.datasets[0].resolution = {96};
  const Result second = RunWithCache(config);
  EXPECT_EQ(second.prepared.cached_pictures, 0);
  EXPECT_EQ(second.prepared.cached_captions, 0);
}

TEST_F(CacheTest, NorWhatAnotherAutoencoderMade) {
  ChangeOneBit(ModelCopy() + "/vae/diffusion_pytorch_model.safetensors");
  const Result second = RunWithCache();
  EXPECT_EQ(second.prepared.cached_pictures, 0);
  EXPECT_EQ(second.prepared.cached_captions, 6);
}

TEST_F(CacheTest, NorWhatAnotherTextEncoderMade) {
  ChangeOneBit(ModelCopy() + "/text_encoder/model.safetensors");
  const Result second = RunWithCache();
  EXPECT_EQ(second.prepared.cached_pictures, 6);
  EXPECT_EQ(second.prepared.cached_captions, 0);
}

TEST_F(CacheTest, ADamagedEntryIsMadeAgainAndKept) {
  const control::TrainConfig config = runs_.Config("second");
  CopyCache(config.output);
  int entries = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(config.output + "/cache")) {
    if (!entry.is_regular_file()) continue;
    ChangeOneBit(entry.path());
    ++entries;
  }
  EXPECT_GE(entries, 6 + 6 + 1);  // pictures, captions, and the empty caption in each bucket
  const Result second = Run(config);
  EXPECT_EQ(second.prepared.cached_pictures, 0);
  EXPECT_EQ(second.prepared.cached_captions, 0);
  ExpectSameSteps(second, first_->result);
  const Result third = runs_.Run(config, 0, "latest").front();
  EXPECT_EQ(third.prepared.cached_pictures, 6);
  EXPECT_EQ(third.prepared.cached_captions, 6);
}

// Replaces the first number of every entry by NaN, with a valid digest.
void WriteNaN(const fs::path& cache) {
  const absl::StatusOr<ContentCache> folder = ContentCache::Open(cache);
  ASSERT_TRUE(folder.ok()) << folder.status();
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(cache)) {
    if (!entry.is_regular_file()) continue;
    const std::string key = entry.path().filename();
    NamedTensors tensors = TensorsOf(folder->Find(key).value_or("")).value_or(NamedTensors());
    ASSERT_FALSE(tensors.empty());
    tensors.begin()->second.view({-1})[0].fill_(NAN);
    ASSERT_TRUE(folder->Keep(key, TensorBytes(tensors)).ok());
  }
}

TEST_F(CacheTest, AnEntryThatIsNotFiniteIsMadeAgain) {
  const control::TrainConfig config = runs_.Config("second");
  CopyCache(config.output);
  WriteNaN(config.output + "/cache");
  const Result second = Run(config);
  EXPECT_EQ(second.prepared.cached_pictures, 0);
  EXPECT_EQ(second.prepared.cached_captions, 0);
  ExpectSameSteps(second, first_->result);
}

TEST_F(CacheTest, WhatIsLostOrDamagedBetweenTwoStepsIsEncodedAgain) {
  control::TrainConfig config = runs_.Config("undisturbed");
  config.train.gradient_accumulation_steps = 2;
  config.parallelism = {.data = 2, .tensor = 2};
  const Result undisturbed = runs_.Run(config, 4).front();
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status;
  for (const bool removes : {true, false}) {
    config.output = runs_.files() / (removes ? "removed" : "damaged");
    const fs::path cache = config.output + "/cache";
    std::atomic<bool> disturbed = false;
    for (const Result& rank : runs_.Run(config, "", [&](Trainer&trainer, Result&result) -> absl::Status {
           RETURN_IF_ERROR(TrainerRuns::Train(trainer, 1, result));
           RETURN_IF_ERROR(TrainerRuns::Save(trainer, /*exports=*/false, result));
           // One rank removes them, which the others may or may not see immediately.
           if (!disturbed.exchange(true)) {
             for (const fs::directory_entry& entry : fs::recursive_directory_iterator(cache)) {
               if (!entry.is_regular_file()) continue;
               if (removes) {
                 fs::remove(entry.path());
               } else {
                 ChangeOneBit(entry.path());
               }
             }
           }
           return TrainerRuns::Train(trainer, 3, result);
         })) {
      ASSERT_TRUE(rank.status.ok()) << rank.status;
      ExpectSameSteps(rank, undisturbed);
    }
    EXPECT_EQ(runs_.Run(config, 0, "latest").front().status, absl::OkStatus());
  }
}

TEST_F(CacheTest, APictureThatCannotBeEncodedAgainIsNamedOnEveryRank) {
  control::TrainConfig config = runs_.Config("run");
  config.parallelism = {.data = 2};
  for (const Result& rank : runs_.Run(config, "", [&](Trainer&trainer, Result&result) -> absl::Status {
         RETURN_IF_ERROR(TrainerRuns::Save(trainer, /*exports=*/false, result));
         std::error_code ignored;
         fs::remove_all(config.output + "/cache", ignored);
         for (const fs::directory_entry& entry : fs::directory_iterator(runs_.files() / "images")) {
           if (entry.path().extension() != ".txt") std::ofstream(entry.path()) << "another";
         }
         RETURN_IF_ERROR(TrainerRuns::Save(trainer, /*exports=*/false, result));
         return TrainerRuns::Train(trainer, 1, result);
       })) {
    EXPECT_EQ(rank.status.code(), absl::StatusCode::kDataLoss) << rank.status;
    EXPECT_THAT(std::string(rank.status.message()), HasSubstr("the file has changed since the run began"));
  }
}

TEST_F(CacheTest, WithoutOneNoneIsUsed) {
  control::TrainConfig config = runs_.Config("second");
  config.datasets[0].cache_latents_to_disk = false;
  config.datasets[0].cache_text_embeddings = false;
  const Result second = Run(config);
  EXPECT_FALSE(fs::exists(config.output + "/cache"));
  ExpectSameSteps(second, first_->result);
}

TEST_F(CacheTest, WithoutAFolderTheRunGoesOnAndSaysSoOnce) {
  runs_.files().Write("second/cache", "a file");
  const Result second = Run(runs_.Config("second"));
  EXPECT_EQ(second.prepared.cached_pictures, 0);
  ExpectSameSteps(second, first_->result);
  ASSERT_THAT(second.warnings, SizeIs(1));
  EXPECT_THAT(second.warnings[0], HasSubstr("are not kept for the next start"));
}

TEST(TensorBytesTest, AreReadAsTheyWereAndDamagedOnesNotAtAll) {
  const NamedTensors tensors = {{"a", at::arange(6, at::kDouble).view({2, 3})},
                                {"b", at::full({4}, 1.5, at::kBFloat16)},
                                {"c", at::empty({0, 5}, at::kLong)}};
  const std::string bytes = TensorBytes(tensors);
  const std::optional<NamedTensors> read = TensorsOf(bytes);
  ASSERT_TRUE(read.has_value());
  ASSERT_EQ(read->size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(read->at(name).scalar_type(), tensor.scalar_type());
    EXPECT_TRUE(at::equal(read->at(name), tensor)) << name;
  }
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(TensorsOf(bytes.substr(0, size)).has_value()) << size;
  EXPECT_FALSE(TensorsOf(bytes + "x").has_value());
}

TEST(ScanTogetherTest, EveryRankGetsTheSameSetOrTheSameError) {
  const TrainerRuns runs("pixart_sigma");
  control::TrainConfig config = runs.Config("scan");
  const control::DatasetOptions options{
      .datasets = config.datasets, .trigger_word = "zzz", .default_resolution = 64, .rule = {}};
  const absl::StatusOr<control::TrainingSet> alone = control::ScanDatasets(options);
  ASSERT_TRUE(alone.ok()) << alone.status();
  const auto scan = [&] {
    std::vector<absl::StatusOr<control::TrainingSet>> sets(4, absl::UnknownError(""));
    RunRanks(4, [&](ThreadRank& rank) {
      int read = 0;
      sets[static_cast<size_t>(rank.rank())] = ScanTogether(options, rank.world(), [&] { ++read; });
      EXPECT_LE(read, 2);  // of six
    });
    return sets;
  };
  for (const absl::StatusOr<control::TrainingSet>& set : scan()) {
    ASSERT_TRUE(set.ok()) << set.status();
    EXPECT_EQ(set->samples, alone->samples);
    EXPECT_EQ(set->buckets, alone->buckets);
  }
  runs.files().Write("images/1.png", "no picture");
  const absl::Status expected = control::ScanDatasets(options).status();
  EXPECT_THAT(std::string(expected.message()), HasSubstr("1.png"));
  for (const absl::StatusOr<control::TrainingSet>& set : scan()) EXPECT_EQ(set.status(), expected);
  config.datasets[0].bad_images = control::BadImages::kSkip;
  for (const absl::StatusOr<control::TrainingSet>& set : scan()) {
    ASSERT_TRUE(set.ok()) << set.status();
    EXPECT_EQ(set->samples.size(), 5u);
    EXPECT_EQ(set->left_out, control::ScanDatasets(options)->left_out);
  }
  fs::remove_all(runs.files() / "images");
  for (const absl::StatusOr<control::TrainingSet>& set : scan()) {
    EXPECT_EQ(set.status().code(), absl::StatusCode::kNotFound);
  }
}

TEST(BaseDigestTest, ARunDoesNotGoOnOnAnotherBaseThoughOneByteOfItsWeightsDiffers) {
  for (const char* file : {"transformer/diffusion_pytorch_model.safetensors", "vae/diffusion_pytorch_model.safetensors",
                           "text_encoder/model.safetensors"}) {
    SCOPED_TRACE(file);
    TrainerRuns runs("pixart_sigma");
    const std::string model = runs.files() / "model";
    fs::copy("tests/golden/pipelines/pixart_sigma", model, fs::copy_options::recursive);
    runs.SetModel(model);
    control::TrainConfig config = runs.Config("run");
    config.network.type = control::NetworkType::kLora;
    const Result first = runs.Run(config, 1).front();
    ASSERT_TRUE(first.status.ok()) << first.status;
    ASSERT_TRUE(runs.Run(config, 0, "latest").front().status.ok());
    ChangeOneBit(fs::path(model) / file);
    config.parallelism.tensor = 2;
    for (const Result& rank : runs.Run(config, 0, "latest")) {
      EXPECT_EQ(rank.status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(rank.status.message()), HasSubstr("was trained from another model than " + model));
    }
  }
}

// Returns the numbers of the checkpoints in a run's output.
std::vector<std::string> CheckpointsIn(const std::string& output) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(output)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("checkpoint-")) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

TEST(TrainerRollbackTest, TheNewLineOfStepsIsKeptAndIsTheLatest) {
  const TrainerRuns runs("pixart_sigma");
  control::TrainConfig config = runs.Config("run");
  config.save.max_step_saves_to_keep = 3;
  const auto steps = [&](const std::string& checkpoint, int count) {
    Result result = runs.Run(config, checkpoint,
                             [&](Trainer& trainer, Result& each) -> absl::Status {
                               for (int i = 0; i < count; ++i) {
                                 RETURN_IF_ERROR(TrainerRuns::Train(trainer, 1, each));
                                 RETURN_IF_ERROR(TrainerRuns::Save(trainer, /*exports=*/false, each));
                               }
                               return absl::OkStatus();
                             })
                        .front();
    EXPECT_TRUE(result.status.ok()) << result.status;
    return result;
  };
  steps("", 4);
  EXPECT_THAT(CheckpointsIn(config.output), testing::ElementsAre("checkpoint-2", "checkpoint-3", "checkpoint-4"));
  // The rollback is kept even if the run is stopped before the first save.
  config.train.lr = 2e-3;
  const Result back = steps(config.output + "/checkpoint-2", 0);
  ASSERT_THAT(back.started.warnings, testing::Contains(HasSubstr("branch-1: checkpoint-4, checkpoint-3")));
  EXPECT_EQ(steps("latest", 0).started.step, 2);
  config.save.max_step_saves_to_keep = 1;
  steps(config.output + "/checkpoint-2", 1);
  EXPECT_THAT(CheckpointsIn(config.output), testing::ElementsAre("checkpoint-3"));
  EXPECT_THAT(CheckpointsIn(config.output + "/branch-1"), testing::ElementsAre("checkpoint-3", "checkpoint-4"));
  // The abandoned branch becomes the current one again before a step of it is saved.
  EXPECT_EQ(steps(config.output + "/branch-1/checkpoint-4", 0).started.step, 4);
  EXPECT_THAT(CheckpointsIn(config.output), testing::ElementsAre("checkpoint-4"));
  EXPECT_THAT(CheckpointsIn(config.output + "/branch-2"), testing::ElementsAre("checkpoint-3"));
  EXPECT_EQ(steps("latest", 1).started.step, 4);
  // A configuration that is refused because it is done moves nothing.
  config.train.steps = 3;
  const Result done = runs.Run(config, "latest", [](Trainer&, Result&) { return absl::OkStatus(); }).front();
  EXPECT_THAT(std::string(done.status.message()), HasSubstr("train.steps is 3, and the checkpoint has 5 steps"));
  EXPECT_THAT(CheckpointsIn(config.output), testing::ElementsAre("checkpoint-5"));
}

// Runs that are saved after each step.
class OtherBranchTest : public ::testing::Test {
 protected:
  Result Steps(const control::TrainConfig& config, const std::string& checkpoint, int count) const {
    return runs_
        .Run(config, checkpoint,
             [count](Trainer& trainer, Result& each) -> absl::Status {
               for (int i = 0; i < count; ++i) {
                 RETURN_IF_ERROR(TrainerRuns::Train(trainer, 1, each));
                 RETURN_IF_ERROR(TrainerRuns::Save(trainer, /*exports=*/false, each));
               }
               return absl::OkStatus();
             })
        .front();
  }
  void SetUp() override { ASSERT_TRUE(Steps(config_, "", 3).status.ok()); }

  const TrainerRuns runs_{"pixart_sigma"};
  const control::TrainConfig config_ = runs_.Config("run");
};

TEST_F(OtherBranchTest, WhatChangesNoSumMayBeDifferentWhenARunGoesOn) {
  const auto next = [&](const control::TrainConfig& config, const std::string& checkpoint) {
    const Result result = Steps(config, checkpoint, 1);
    EXPECT_TRUE(result.status.ok()) << result.status;
    return result.steps.empty() ? control::Trained() : result.steps[0];
  };
  // Continues from checkpoint 2, after which the run has already taken a step.
  const control::Trained expected = next(config_, config_.output + "/checkpoint-2");
  const auto expect_same = [&](const control::TrainConfig& config, const std::string& checkpoint) {
    SCOPED_TRACE(absl::StrCat(config.output, " from ", checkpoint));
    const control::Trained step = next(config, checkpoint);
    EXPECT_EQ(step.step, expected.step);
    EXPECT_EQ(step.loss, expected.loss);
    EXPECT_EQ(step.gradient_norm, expected.gradient_norm);
  };
  // A branch into another output, with other policies.
  control::TrainConfig other = config_;
  other.output = runs_.files() / "other/";
  other.train.gradient_checkpointing = !other.train.gradient_checkpointing;
  other.train.blocks_to_swap = 0;
  other.train.max_nonfinite_steps = 1;
  other.datasets[0].bad_images = control::BadImages::kSkip;
  other.datasets[0].cache_latents_to_disk = false;
  expect_same(other, config_.output + "/checkpoint-2");
  EXPECT_THAT(CheckpointsIn(other.output), testing::ElementsAre("checkpoint-2", "checkpoint-3"));
  fs::remove_all(other.output + "checkpoint-3");
  expect_same(other, "latest");
  fs::remove_all(other.output + "checkpoint-3");
  // An output, images and a model that were moved, and paths that end with slashes.
  fs::rename(runs_.files() / "other", runs_.files() / "moved");
  other.output = runs_.files() / "moved";
  fs::copy(config_.model, runs_.files() / "model", fs::copy_options::recursive);
  other.model = runs_.files() / "model/";
  fs::rename(runs_.files() / "images", runs_.files() / "pictures");
  other.datasets[0].folder_path = runs_.files() / "pictures//";
  expect_same(other, "latest");
  fs::remove_all(other.output + "/checkpoint-3");
  // Half of the images and their captions in a second folder, with captions under another name.
  for (const fs::directory_entry& entry : fs::directory_iterator(runs_.files() / "pictures")) {
    fs::path to = runs_.files() / "more" / entry.path().filename();
    if (to.stem().string() < "3") continue;
    if (to.extension() == ".txt") to.replace_extension(".caption");
    fs::create_directories(to.parent_path());
    fs::rename(entry.path(), to);
  }
  other.datasets.push_back(other.datasets[0]);
  other.datasets[1].folder_path = runs_.files() / "more";
  other.datasets[1].caption_ext = ".caption";
  expect_same(other, "latest");
}

TEST_F(OtherBranchTest, WhatChangesSumsIsStillRefusedByName) {
  const auto refusal = [&](const control::TrainConfig& config) {
    const Result result = Steps(config, config_.output + "/checkpoint-2", 1);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(result.status.message());
  };
  control::TrainConfig config = config_;
  config.datasets[0].num_repeats = 2;
  EXPECT_THAT(refusal(config), HasSubstr("datasets[0].num_repeats was '1' and is '2'"));
  config = config_;
  config.datasets[0].caption_dropout_rate = 0.25;
  EXPECT_THAT(refusal(config), HasSubstr("datasets[0].caption_dropout_rate was '0.3' and is '0.25'"));
  config = config_;
  config.trigger_word = "other";
  EXPECT_THAT(refusal(config), HasSubstr("trigger_word was 'zzz' and is 'other'"));
  // Other images at another path, and another order of the same ones.
  config = config_;
  config.datasets[0].folder_path = runs_.files() / "other";
  fs::copy(runs_.files() / "images", config.datasets[0].folder_path);
  fs::rename(config.datasets[0].folder_path + "/0.png", config.datasets[0].folder_path + "/9.png");
  fs::rename(config.datasets[0].folder_path + "/0.txt", config.datasets[0].folder_path + "/9.txt");
  EXPECT_THAT(refusal(config), HasSubstr("was trained on images or captions that differ from those in datasets"));
  // A model at another path whose noise schedule differs.
  config = config_;
  config.model = runs_.files() / "model";
  fs::copy(config_.model, config.model, fs::copy_options::recursive);
  std::string scheduler = FileBytes(config.model + "/scheduler/scheduler_config.json");
  scheduler.insert(scheduler.rfind('}'), " ");
  runs_.files().Write("model/scheduler/scheduler_config.json", scheduler);
  EXPECT_THAT(refusal(config), HasSubstr("was trained from another model than " + config.model));
  EXPECT_THAT(CheckpointsIn(config_.output), testing::ElementsAre("checkpoint-1", "checkpoint-2", "checkpoint-3"));
}

TEST_F(OtherBranchTest, ACheckpointThatIsNoneOfTheOutputsIsRefusedByNameWhereItHasItsOwn) {
  const std::string elsewhere = runs_.files() / "elsewhere/checkpoint-2";
  fs::create_directories(elsewhere);
  fs::copy(config_.output + "/checkpoint-2", elsewhere);
  const Result refused = Steps(config_, elsewhere, 1);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status.message()),
              testing::AllOf(HasSubstr("--resume is \"" + elsewhere), HasSubstr("output is \"" + config_.output),
                             HasSubstr("--resume latest")));
  EXPECT_THAT(CheckpointsIn(config_.output), testing::ElementsAre("checkpoint-1", "checkpoint-2", "checkpoint-3"));
  EXPECT_FALSE(fs::exists(config_.output + "/branch-1"));
  EXPECT_EQ(Steps(config_, elsewhere + "9", 1).status.code(), absl::StatusCode::kNotFound);
  // A checkpoint of this run is accepted under any path and under a name that the user gave it.
  fs::create_directory_symlink(config_.output, runs_.files() / "link");
  const Result own = Steps(config_, runs_.files() / "link/checkpoint-2/", 0);
  ASSERT_TRUE(own.status.ok()) << own.status;
  EXPECT_THAT(CheckpointsIn(config_.output), testing::ElementsAre("checkpoint-1", "checkpoint-2"));
  fs::rename(config_.output + "/checkpoint-2", config_.output + "/best");
  const Result named = Steps(config_, config_.output + "/best", 0);
  ASSERT_TRUE(named.status.ok()) << named.status;
  EXPECT_THAT(CheckpointsIn(config_.output), testing::ElementsAre("checkpoint-2"));
  EXPECT_EQ(Steps(config_, "latest", 0).started.step, 2);
}

TEST_F(OtherBranchTest, AMoveThatWasInterruptedIsFinishedByTheNextStart) {
  // The state after a kill while --resume checkpoint-1 moved the others.
  fs::create_directories(config_.output + "/branch-1");
  fs::rename(config_.output + "/checkpoint-3", config_.output + "/branch-1/checkpoint-3");
  runs_.files().Write("run/.branch/moved", "branch-1\ncheckpoint-3\ncheckpoint-2\n");
  const Result next = Steps(config_, "latest", 0);
  ASSERT_TRUE(next.status.ok()) << next.status;
  EXPECT_EQ(next.started.step, 1);
  EXPECT_THAT(next.started.warnings, testing::Contains(HasSubstr("branch-1: checkpoint-3, checkpoint-2")));
  EXPECT_THAT(CheckpointsIn(config_.output), testing::ElementsAre("checkpoint-1"));
  EXPECT_THAT(CheckpointsIn(config_.output + "/branch-1"), testing::ElementsAre("checkpoint-2", "checkpoint-3"));
  EXPECT_FALSE(fs::exists(config_.output + "/.branch"));
  // A name in the list that is not a result of this run is not accepted.
  runs_.files().Write("run/.branch/moved", "branch-2\n../run\n");
  const Result malformed = Steps(config_, "latest", 0);
  EXPECT_EQ(malformed.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(malformed.status.message()), HasSubstr("/.branch/moved: is malformed"));
}

TEST_F(OtherBranchTest, WithoutACheckpointButWithABranchNoNewRunBegins) {
  fs::create_directories(config_.output + "/branch-1");
  for (const std::string& name : CheckpointsIn(config_.output)) {
    fs::rename(config_.output + "/" + name, config_.output + "/branch-1/" + name);
  }
  const Result latest = Steps(config_, "latest", 0);
  EXPECT_EQ(latest.status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(latest.status.message()), HasSubstr("other branches are in branch-1"));
  EXPECT_EQ(Steps(config_, "", 0).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Steps(config_, config_.output + "/branch-1/checkpoint-3", 0).started.step, 3);
}

TEST(TrainerOutputTest, ASecondRunInTheSameOutputIsRefusedOnEveryRankAndChangesNothing) {
  const TrainerRuns runs("pixart_sigma");
  control::TrainConfig config = runs.Config("run");
  std::vector<Result> second;
  const Result first = runs.Run(config, "",
                                [&](Trainer& trainer, Result& each) -> absl::Status {
                                  RETURN_IF_ERROR(TrainerRuns::Train(trainer, 1, each));
                                  RETURN_IF_ERROR(TrainerRuns::Save(trainer, /*exports=*/false, each));
                                  // By another name, and on two ranks.
                                  fs::create_directory_symlink(config.output, runs.files() / "link");
                                  control::TrainConfig other = runs.Config("link");
                                  other.parallelism.data = 2;
                                  second = runs.Run(other, 1, "latest");
                                  return TrainerRuns::Train(trainer, 1, each);
                                })
                           .front();
  ASSERT_TRUE(first.status.ok()) << first.status;
  ASSERT_THAT(second, SizeIs(2));
  for (const Result& rank : second) {
    EXPECT_EQ(rank.status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(rank.status.message()),
                testing::AllOf(HasSubstr("output is "), HasSubstr("/link"), HasSubstr("another run uses: process ")));
  }
  EXPECT_THAT(CheckpointsIn(config.output), testing::ElementsAre("checkpoint-1"));
  // The lock ends with its run.
  EXPECT_TRUE(runs.Run(config, 1, "latest").front().status.ok());
}

TEST(TrainerDataTest, TwoRepeatsEqualTheFolderListedTwice) {
  const TrainerRuns runs("pixart_sigma");
  control::TrainConfig repeated = runs.Config("repeated"), listed = runs.Config("listed");
  repeated.datasets[0].num_repeats = 2;
  listed.datasets.push_back(listed.datasets[0]);
  const Result one = runs.Run(repeated, 7).front(), other = runs.Run(listed, 7).front();
  ASSERT_TRUE(one.status.ok()) << one.status;
  ASSERT_TRUE(other.status.ok()) << other.status;
  ExpectSameSteps(one, other);
  ASSERT_FALSE(Weights(one).empty());
  EXPECT_EQ(Weights(one), Weights(other));
}

TEST(TrainerDataTest, ARunFromScratchBeginsAlikeWhereItIsToGoOnFromNoCheckpoint) {
  const TrainerRuns runs("pixart_sigma");
  control::TrainConfig config = runs.Config("new");
  const Result base = runs.Run(config, 1).front();
  config.network.from_scratch = true;
  config.output = runs.files() / "scratch";
  const Result scratch = runs.Run(config, 1).front();
  config.output = runs.files() / "latest";
  const Result latest = runs.Run(config, 1, "latest").front();
  ASSERT_TRUE(latest.status.ok()) << latest.status;
  ExpectSameSteps(latest, scratch);
  EXPECT_NE(latest.steps.at(0).loss, base.steps.at(0).loss);
}

// In single precision, in which a topology changes the order of sums: compares the first step, before that has had an
// effect, and the steps after it.
void ExpectTheStepsOfOneRank(const char* model, const std::vector<control::TrainParallelism>& topologies) {
  const TrainerRuns runs(model);
  control::TrainConfig config = runs.Config("serial");
  config.train.dtype = control::TrainDtype::kFp32;
  config.train.lr = 1e-4;
  // Levels that depend on a sample's position in the run's order.
  config.train.low_discrepancy_timesteps = true;
  const Result serial = runs.Run(config, 20).front();
  ASSERT_TRUE(serial.status.ok()) << serial.status;
  for (const control::TrainParallelism& parallelism : topologies) {
    config.parallelism = parallelism;
    config.output = runs.files() / absl::StrCat("d", parallelism.data, "t", parallelism.tensor, "u",
                                                parallelism.ulysses, "r", parallelism.ring, "p", parallelism.pipe, "s",
                                                parallelism.sequence_parallel, "z", static_cast<int>(parallelism.zero));
    SCOPED_TRACE(config.output);
    const Result other = runs.Run(config, 20).front();
    ASSERT_TRUE(other.status.ok()) << other.status;
    const control::Trained &a = serial.steps[0], &b = other.steps[0];
    EXPECT_LE(std::abs(a.loss - b.loss), 1e-6 * a.loss);
    EXPECT_LE(std::abs(a.gradient_norm - b.gradient_norm), 1e-6 * a.gradient_norm);
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_LE(std::abs(serial.steps[i].loss - other.steps[i].loss), 1e-3 * serial.steps[i].loss) << "step " << i;
    }
  }
}

TEST(TrainerDataTest, EveryTopologyTakesTheSameStepsInSinglePrecision) {
  using control::ZeroStage;
  ExpectTheStepsOfOneRank("pixart_sigma",
                          {{.data = 2},
                           {.data = 2, .zero = ZeroStage::kOptimizer},
                           {.data = 2, .zero = ZeroStage::kFull},
                           {.tensor = 2},
                           {.tensor = 2, .sequence_parallel = true},
                           {.ulysses = 2},
                           {.ring = 2},
                           {.pipe = 2},
                           {.data = 2, .tensor = 2, .sequence_parallel = true, .zero = ZeroStage::kFull},
                           {.data = 2, .ulysses = 2, .ring = 2, .zero = ZeroStage::kOptimizer}});
}

TEST(TrainerDataTest, SoItDoesWhereTextAndImageShareAttention) {
  ExpectTheStepsOfOneRank("flux_dev", {{.tensor = 2},
                                       {.tensor = 2, .sequence_parallel = true},
                                       {.ulysses = 2},
                                       {.ring = 2},
                                       {.pipe = 4},
                                       {.data = 2, .zero = control::ZeroStage::kFull}});
}

TEST(TrainerDataTest, ABaseInEightBitsThatIsSharedOutTakesTheStepsOfOneThatIsNot) {
  const TrainerRuns runs("pixart_sigma");
  control::TrainConfig config = runs.Config("whole");
  config.network.type = control::NetworkType::kLora;
  config.train.quantize = true;
  const Result whole = runs.Run(config, 3).front();
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  config.output = runs.files() / "shared";
  config.parallelism = {.data = 2, .zero = control::ZeroStage::kFull};
  for (const Result& rank : runs.Run(config, 3)) {
    ASSERT_TRUE(rank.status.ok()) << rank.status;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(rank.steps.at(i).loss, whole.steps[i].loss, 1e-10 * whole.steps[i].loss) << "step " << i;
    }
  }
  config.output = runs.files() / "plain";
  config.parallelism = {};
  config.train.quantize = false;
  EXPECT_NE(runs.Run(config, 1).front().steps.at(0).loss, whole.steps[0].loss);
}

// A stage writes what it holds, and the stage that holds it next reads it: the steps and the exports are those of one
// rank that was never resumed.
TEST(TrainerStagesTest, ARunGoesOnWithMoreStagesAndWithFewer) {
  for (const control::NetworkType type : {control::NetworkType::kFull, control::NetworkType::kLora}) {
    const TrainerRuns runs("pixart_sigma");
    control::TrainConfig config = runs.Config("serial");
    config.network.type = type;
    config.network.linear = 2;
    config.train.gradient_accumulation_steps = 3;
    config.train.ema_decay = 0.9;
    const Result serial = runs.Run(config, 6).front();
    ASSERT_TRUE(serial.status.ok()) << serial.status;
    config.output = runs.files() / "stages";
    std::vector<control::Trained> steps;
    Result last;
    const control::TrainParallelism topologies[] = {
        {.pipe = 2}, {.data = 2, .zero = control::ZeroStage::kOptimizer}, {.data = 2, .pipe = 2}};
    for (const control::TrainParallelism& parallelism : topologies) {
      config.parallelism = parallelism;
      const std::vector<Result> ranks = runs.Run(config, 2, steps.empty() ? "" : "latest");
      for (const Result& rank : ranks) {
        ASSERT_TRUE(rank.status.ok()) << rank.status;
        EXPECT_EQ(rank.started.trained_parameters, serial.started.trained_parameters);
        ASSERT_EQ(rank.steps.size(), 2u);
        for (size_t i = 0; i < 2; ++i) {
          EXPECT_EQ(rank.steps[i].loss, ranks[0].steps[i].loss);
          EXPECT_EQ(rank.steps[i].gradient_norm, ranks[0].steps[i].gradient_norm);
        }
      }
      steps.insert(steps.end(), ranks[0].steps.begin(), ranks[0].steps.end());
      last = ranks[0];
    }
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_NEAR(steps[i].loss, serial.steps[i].loss, 1e-10 * serial.steps[i].loss) << "step " << i;
      EXPECT_NEAR(steps[i].gradient_norm, serial.steps[i].gradient_norm, 1e-10 * serial.steps[i].gradient_norm)
          << "step " << i;
    }
    // Holds the same tensors, including those of other stages.
    const auto file_of = [&](const Result& run) {
      return type == control::NetworkType::kFull ? Weights(run) : FileBytes(run.saved.exported);
    };
    ASSERT_FALSE(file_of(serial).empty());
    EXPECT_EQ(file_of(last).size(), file_of(serial).size());
  }
}

// Reads a checkpoint of each topology on each. The state is written again immediately, and its whole tensors must equal
// what was read bit for bit; the next step must have the loss of the run that continued.
class ResumeTest : public ::testing::TestWithParam<control::NetworkType> {
 protected:
  struct Saved {
    std::string checkpoint;
    double next_loss = 0;
    std::map<std::string, at::Tensor> state;
  };

  static std::string NameOf(const control::TrainParallelism& topology) {
    return absl::StrCat("data=", topology.data, " tensor=", topology.tensor, " ulysses=", topology.ulysses,
                        " pipe=", topology.pipe, " zero=", static_cast<int>(topology.zero));
  }
  static const std::vector<control::TrainParallelism>& Topologies() {
    using control::ZeroStage;
    static const std::vector<control::TrainParallelism> topologies = {{},
                                                                      {.data = 2},
                                                                      {.tensor = 2},
                                                                      {.tensor = 4},
                                                                      {.ulysses = 2},
                                                                      {.pipe = 2},
                                                                      {.data = 2, .tensor = 2},
                                                                      {.data = 2, .zero = ZeroStage::kOptimizer},
                                                                      {.data = 3, .zero = ZeroStage::kFull}};
    return topologies;
  }
  static std::map<std::string, at::Tensor> StateIn(const std::string& checkpoint) {
    std::map<std::string, at::Tensor> state;
    absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(checkpoint);
    EXPECT_TRUE(reader.ok()) << reader.status();
    if (!reader.ok()) return state;
    for (const auto& [name, tensor] : reader->index().tensors) {
      const absl::StatusOr<at::Tensor> read = reader->Read(name);
      EXPECT_TRUE(read.ok()) << read.status();
      if (read.ok()) state[name] = *read;
    }
    return state;
  }

  control::TrainConfig Config(const control::TrainParallelism& topology) const {
    control::TrainConfig config = runs_.Config("run");
    config.network.type = GetParam();
    config.train.batch_size = 6;
    config.train.ema_decay = 0.9;
    config.parallelism = topology;
    return config;
  }

  // Takes two steps, which are saved, and one more.
  Saved SaveOn(const control::TrainParallelism& topology) const {
    const control::TrainConfig config = Config(topology);
    const Result result = runs_
                              .Run(config, "",
                                   [](Trainer& trainer, Result& rank) -> absl::Status {
                                     RETURN_IF_ERROR(TrainerRuns::Train(trainer, 2, rank));
                                     RETURN_IF_ERROR(TrainerRuns::Save(trainer, /*exports=*/false, rank));
                                     return TrainerRuns::Train(trainer, 1, rank);
                                   })
                              .front();
    EXPECT_TRUE(result.status.ok()) << result.status;
    if (!result.status.ok()) return {};
    EXPECT_THAT(result.saved.warnings, IsEmpty());
    // Moves the checkpoint out of the folder in which the next run begins.
    Saved saved{.checkpoint = runs_.files() / NameOf(topology), .next_loss = result.steps.back().loss, .state = {}};
    fs::rename(result.saved.checkpoint, saved.checkpoint);
    saved.state = StateIn(saved.checkpoint);
    return saved;
  }

  void ExpectResumesOn(const control::TrainParallelism& topology, const Saved& saved) const {
    const Result result = runs_
                              .Run(Config(topology), saved.checkpoint,
                                   [](Trainer& trainer, Result& rank) -> absl::Status {
                                     RETURN_IF_ERROR(TrainerRuns::Save(trainer, /*exports=*/false, rank));
                                     return TrainerRuns::Train(trainer, 1, rank);
                                   })
                              .front();
    ASSERT_TRUE(result.status.ok()) << result.status;
    const std::map<std::string, at::Tensor> state = StateIn(result.saved.checkpoint);
    ASSERT_EQ(state.size(), saved.state.size());
    for (const auto& [name, tensor] : saved.state) {
      ASSERT_TRUE(state.contains(name)) << name;
      EXPECT_TRUE(at::equal(state.at(name), tensor)) << name;
    }
    EXPECT_EQ(result.steps.at(0).step, 3);
    EXPECT_LE(std::abs(result.steps[0].loss - saved.next_loss), 1e-10 * saved.next_loss);
    fs::remove_all(result.saved.checkpoint);
  }

  const TrainerRuns runs_{"pixart_sigma"};
};

TEST_P(ResumeTest, WhatEachTopologySavesEveryOtherGoesOnFrom) {
  for (const control::TrainParallelism& from : Topologies()) {
    const Saved saved = SaveOn(from);
    ASSERT_GT(saved.next_loss, 0);
    // Weights, both moments and the moving average, none of which is zero.
    ASSERT_GT(saved.state.size(), 4u);
    for (const auto& [name, tensor] : saved.state) EXPECT_TRUE(at::any(tensor != 0).item<bool>()) << name;
    for (const control::TrainParallelism& to : Topologies()) {
      SCOPED_TRACE(absl::StrCat(NameOf(from), " read on ", NameOf(to)));
      ExpectResumesOn(to, saved);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, ResumeTest,
                         ::testing::Values(control::NetworkType::kFull, control::NetworkType::kLora),
                         [](const auto& info) { return info.param == control::NetworkType::kFull ? "full" : "lora"; });

// Returns the bytes after the header of a weight file; the header contains the step.
std::string TensorsOf(const std::string& file) {
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof(header));
  return file.substr(sizeof(header) + header);
}

// A learning rate of 10 makes the weights useless after the first step.
class LossRatioTest : public ::testing::Test {
 protected:
  control::TrainConfig Config(const std::string& output) const {
    control::TrainConfig config = runs_.Config(output);
    config.train.lr = 10;
    config.save.save_every = 1;
    return config;
  }
  TrainerRuns runs_{"pixart_sigma"};
};

TEST_F(LossRatioTest, IsThatToTheMeanOfTheLossesBeforeOnEveryRankAndAfterAResume) {
  control::TrainConfig config = Config("whole");
  config.parallelism.data = 2;
  const std::vector<Result> whole = runs_.Run(config, 2);
  for (const Result& rank : whole) {
    ASSERT_TRUE(rank.status.ok()) << rank.status;
    EXPECT_EQ(rank.steps[0].loss_ratio, 0);
    EXPECT_EQ(rank.steps[1].loss_ratio, rank.steps[1].loss / rank.steps[0].loss);
    EXPECT_GT(rank.steps[1].loss_ratio, 1000);
    EXPECT_FALSE(rank.steps[1].skipped);
  }
  EXPECT_EQ(whole[0].steps[1].loss_ratio, whole[1].steps[1].loss_ratio);
  config.output = Config("resumed").output;
  const std::vector<Result> first = runs_.Run(config, 1), second = runs_.Run(config, 1, "latest");
  ASSERT_TRUE(second[0].status.ok()) << second[0].status;
  EXPECT_EQ(second[0].steps[0].loss_ratio, whole[0].steps[1].loss_ratio);
}

TEST_F(LossRatioTest, AStepBeyondTheLargestIsNotTaken) {
  control::TrainConfig config = Config("ends");
  config.train.max_loss_ratio = 1000;
  const Result first = runs_.Run(config, 1).front();
  ASSERT_TRUE(first.status.ok()) << first.status;
  const Result second = runs_.Run(config, 1, "latest").front();
  ASSERT_TRUE(second.status.ok()) << second.status;
  EXPECT_GT(second.steps[0].loss_ratio, 1000);
  EXPECT_TRUE(second.steps[0].skipped);
  ASSERT_GT(Weights(first).size(), sizeof(uint64_t));
  ASSERT_GT(Weights(second).size(), sizeof(uint64_t));
  EXPECT_TRUE(TensorsOf(Weights(second)) == TensorsOf(Weights(first)));
}

// Each of the six images has two pictures; the first are of two sizes.
class ControlPicturesRunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 6; ++i) {
      Put(i < 4 ? "wide_96x64.png" : "tall_64x80.png", absl::StrCat("before/", i, ".png"));
      Put("tall_64x80.png", absl::StrCat("style/", i, ".png"));
    }
  }

  // Writes the picture with a comment, so that no two files are equal.
  void Put(const std::string& picture, const std::string& name) const {
    constexpr size_t kHeader = 33;  // bytes of a PNG's signature and first chunk
    std::string bytes = FileBytes("tests/pictures/" + picture);
    const auto big_endian = [](uint32_t value) {
      return std::string{static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
                         static_cast<char>(value)};
    };
    const std::string text = "Comment" + std::string(1, '\0') + name, chunk = "tEXt" + text;
    const uLong checksum = crc32(0, reinterpret_cast<const Bytef*>(chunk.data()), static_cast<uInt>(chunk.size()));
    bytes.insert(kHeader,
                 big_endian(static_cast<uint32_t>(text.size())) + chunk + big_endian(static_cast<uint32_t>(checksum)));
    runs_.files().Write(name, bytes);
  }

  control::TrainConfig Config(const std::string& output) const {
    control::TrainConfig config = runs_.Config(output);
    config.datasets[0].control_path = {runs_.files() / "before", runs_.files() / "style"};
    return config;
  }

  Result Run(const control::TrainConfig& config, int steps, const std::string& checkpoint = "") const {
    Result result = runs_.Run(config, steps, checkpoint).front();
    EXPECT_TRUE(result.status.ok()) << result.status;
    return result;
  }
  static std::string ErrorOf(const Result& result) { return std::string(result.status.message()); }

  static void ExpectSteps(const Result& run, const Result& expected, double tolerance) {
    ASSERT_TRUE(run.status.ok()) << run.status;
    ASSERT_EQ(run.steps.size(), expected.steps.size());
    for (size_t i = 0; i < run.steps.size(); ++i) {
      EXPECT_NEAR(run.steps[i].loss, expected.steps[i].loss, tolerance * expected.steps[i].loss) << "step " << i;
      EXPECT_NEAR(run.steps[i].gradient_norm, expected.steps[i].gradient_norm,
                  tolerance * expected.steps[i].gradient_norm)
          << "step " << i;
    }
  }

  TrainerRuns runs_{"flux2_klein_base"};
};

TEST_F(ControlPicturesRunTest, EveryTopologyTakesTheStepsOfOneRank) {
  control::TrainConfig config = Config("serial");
  config.train.gradient_accumulation_steps = 2;
  const Result serial = Run(config, 3);
  control::TrainConfig without = runs_.Config("without");
  without.train.gradient_accumulation_steps = 2;
  EXPECT_GT(std::abs(Run(without, 1).steps[0].loss - serial.steps[0].loss), 1e-6) << "the pictures have no effect";
  for (const auto& [name, parallelism] : std::vector<std::pair<std::string, control::TrainParallelism>>{
           {"ulysses", {.ulysses = 2}},
           {"ring", {.ring = 2}},
           {"tensor", {.tensor = 2}},
           {"shared", {.tensor = 2, .sequence_parallel = true}},
           {"pipe", {.pipe = 2}},
           {"data", {.data = 2}}}) {
    SCOPED_TRACE(name);
    config.output = runs_.files() / name;
    config.parallelism = parallelism;
    for (const Result& rank : runs_.Run(config, 3)) ExpectSteps(rank, serial, 1e-9);
  }
}

TEST_F(ControlPicturesRunTest, EncodingsAreFoundByTheContentsOfThePicturesToo) {
  const control::TrainConfig config = Config("first");
  const Result first = Run(config, 2);
  EXPECT_EQ(first.prepared.cached_pictures, 0);
  const auto again = [&](const std::string& output) {
    control::TrainConfig other = Config(output);
    fs::create_directories(other.output);
    fs::copy(config.output + "/cache", other.output + "/cache", fs::copy_options::recursive);
    return Run(other, 2);
  };
  const Result second = again("second");
  EXPECT_EQ(second.prepared.cached_pictures, 6);
  ExpectSteps(second, first, 0);
  control::TrainConfig in_memory = Config("in_memory");
  in_memory.datasets[0].cache_latents_to_disk = in_memory.datasets[0].cache_text_embeddings = false;
  ExpectSteps(Run(in_memory, 2), first, 0);
  Put("wide_96x64.png", "style/3.png");
  EXPECT_EQ(again("third").prepared.cached_pictures, 5);
  // A checkpoint was trained on the pictures, too.
  const Result resumed = runs_.Run(config, 1, "latest").front();
  EXPECT_EQ(resumed.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(ErrorOf(resumed), HasSubstr("was trained on images or captions that differ from those in datasets"));
}

TEST_F(ControlPicturesRunTest, APictureThatChangesAfterTheScanIsNamedAndItsImageLeftOut) {
  const std::string picture = runs_.files() / "style/2.png";
  control::TrainConfig config = Config("refused");
  config.parallelism.data = 2;
  runs_.SetBeforePreparing([&] { fs::remove(picture); });
  for (const Result& rank : runs_.Run(config, 1)) {
    EXPECT_EQ(rank.status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(ErrorOf(rank), AllOf(HasSubstr(picture + ": the file has changed since the run began"),
                                     HasSubstr("; restore it, or set bad_images: skip")));
  }
  Put("tall_64x80.png", "style/2.png");
  config.output = runs_.files() / "skipped";
  config.datasets[0].bad_images = control::BadImages::kSkip;
  for (const Result& rank : runs_.Run(config, 1)) {
    ASSERT_TRUE(rank.status.ok()) << rank.status;
    EXPECT_EQ(rank.started.samples, 6);
    EXPECT_EQ(rank.prepared.samples, 5);
    EXPECT_THAT(rank.warnings, ElementsAre(AllOf(HasSubstr("1 image is left out: "), HasSubstr("images/2.png ("),
                                                 HasSubstr(picture + ": the file has changed"))));
  }
}

TEST_F(ControlPicturesRunTest, ImagesWithoutPicturesAreRefusedBeforeAnythingIsEncoded) {
  fs::remove(runs_.files() / "before/1.png");
  const Result result = runs_.Run(Config("refused"), 1).front();
  EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(ErrorOf(result), AllOf(HasSubstr("images/1."), HasSubstr("there is no picture for it")));
}

}  // namespace
}  // namespace tessera::runtime
