// Tests pictures that change between the scan of a run's folders and their encoding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "runtime/training/trainer.h"
#include "tests/support/trainer_runs.h"

namespace tessera::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Result = TrainerRuns::Result;

std::string BytesOfFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

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
      return BytesOfFile(result.saved.exported + "/transformer/diffusion_pytorch_model.safetensors");
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
