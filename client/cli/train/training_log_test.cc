#include "client/cli/train/training_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/test_folder.h"

namespace tessera::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class TrainingRunLogTest : public testing::Test {
 protected:
  TrainingLog Open(int64_t first_step) {
    return TrainingLog({.folder = folder_.path(),
                        .first_step = first_step,
                        .images_of_a_step = 6,
                        .warn = [this](const std::string& warning) { warnings_.push_back(warning); },
                        .now = [] { return 1700000000.5; }});
  }

  std::string Lines() const {
    std::ifstream in(folder_ / "log.jsonl");
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // Returns the concatenated contents of all event files.
  std::string Events() const {
    std::string all;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      if (entry.path().string().find("tfevents") == std::string::npos) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      all.append(std::istreambuf_iterator<char>(in), {});
    }
    return all;
  }

  TestFolder folder_;
  std::vector<std::string> warnings_;
};

TEST_F(TrainingRunLogTest, StepsEvaluationsSamplesAndCheckpointsAreLinesAndEvents) {
  TrainingLog log = Open(0);
  log.OnTrained({.step = 1, .loss = 0.5, .gradient_norm = 2, .learning_rate = 0.001, .seconds = 3});
  log.OnEvaluated(1, {.losses = {1, 3}});
  const std::string png("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x02\0\0\0\x03\x08\x02", 26);
  log.OnSample(1, 4, folder_.Write("a.png", png));
  log.OnGrid(1, folder_ / "a.png");
  log.OnSaved(1, {.checkpoint = "out/checkpoint-1"});
  const std::string start = "{\"step\":1,\"time\":1700000000.5,";
  EXPECT_EQ(Lines(), start +
                         "\"loss\":0.5,\"grad_norm\":2.0,\"lr\":0.001,\"images_per_second\":2.0,\"skipped\":0.0}\n" +
                         start + "\"validation_loss\":2.0,\"validation_loss/0\":1.0,\"validation_loss/1\":3.0}\n" +
                         start + "\"event\":\"sample " + (folder_ / "a.png") + "\"}\n" + start + "\"event\":\"grid " +
                         (folder_ / "a.png") + "\"}\n" + start + "\"event\":\"saved out/checkpoint-1\"}\n");
  for (const std::string& part : {std::string("grad_norm"), std::string("validation_loss/1"), std::string("samples/4"),
                                  std::string("grid"), png}) {
    EXPECT_NE(Events().find(part), std::string::npos) << part;
  }
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(TrainingRunLogTest, ARunThatResumesContinuesAfterItsCheckpoint) {
  {
    TrainingLog log = Open(0);
    for (const int64_t step : {1, 2, 3}) log.OnTrained({.step = step, .loss = 1, .seconds = 1});
  }
  TrainingLog log = Open(1);
  log.OnTrained({.step = 2, .loss = 5, .seconds = 1});
  EXPECT_THAT(Lines(), HasSubstr("{\"step\":2,\"time\":1700000000.5,\"loss\":5.0"));
  EXPECT_THAT(Lines(), testing::Not(HasSubstr("\"step\":3")));
  const std::string lines = Lines();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
}

TEST_F(TrainingRunLogTest, AFullDiskIsWarnedOfOnceAndTheRunGoesOn) {
  TrainingLog log = Open(0);
  log.OnTrained({.step = 1, .seconds = 1});
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit = {.rlim_cur = 1, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  for (const int64_t step : {2, 3}) log.OnTrained({.step = step, .seconds = 1});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("the log of the run is not complete")));
  log.OnTrained({.step = 4, .seconds = 1});
  EXPECT_THAT(Lines(), HasSubstr("\"step\":4"));
  EXPECT_THAT(Lines(), testing::Not(HasSubstr("\"step\":3")));
}

TEST_F(TrainingRunLogTest, AFileThatIsNoLogIsWarnedOfAndKept) {
  folder_.Write("log.jsonl", "not a log\n");
  TrainingLog log = Open(0);
  log.OnTrained({.step = 1, .seconds = 1});
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("log.jsonl: line 1")));
  EXPECT_EQ(Lines(), "not a log\n");
}

}  // namespace
}  // namespace tessera::client
