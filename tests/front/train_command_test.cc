// `tessera train` with real workers on models of a few thousand parameters, in double precision.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "server/image/image_file.h"
#include "tests/front/child_process.h"
#include "tests/support/fault_runs.h"
#include "tests/support/test_folder.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Finished {
  int exit_code = 0;
  std::vector<boost::json::object> events;
  std::string errors;

  std::vector<boost::json::object> Of(const std::string& event) const {
    std::vector<boost::json::object> of;
    for (const boost::json::object& line : events) {
      if (line.at("event").as_string() == event) of.push_back(line);
    }
    return of;
  }
  std::vector<double> Losses() const {
    std::vector<double> losses;
    for (const boost::json::object& line : Of("trained")) losses.push_back(line.at("loss").to_number<double>());
    return losses;
  }
  std::string Path(const char* key) const {
    const std::vector<boost::json::object> saved = Of("saved");
    return saved.empty() ? "" : std::string(saved.back().at(key).as_string());
  }
};

class TrainCommandTest : public ::testing::Test {
 protected:
  TrainCommandTest() {
    fs::create_directories(folder() + "/images");
    for (int i = 0; i < 6; ++i) WritePicture(i);
  }

  std::string folder() const { return folder_.path(); }
  std::string images() const { return folder() + "/images"; }

  // Pictures of two proportions, so that there are two buckets.
  void WritePicture(int index) const {
    control::Image image{.width = 64, .height = index % 3 == 2 ? 96 : 64};
    for (int i = 0; i < image.width * image.height * 3; ++i) {
      image.rgb.push_back(static_cast<uint8_t>((i * (index + 3) / 7 + 40 * index) % 256));
    }
    const std::string name = absl::StrCat(images(), "/", index);
    std::ofstream(name + ".png", std::ios::binary) << *server::EncodeImage(image, server::ImageFormat::kPng, {});
    std::ofstream(name + ".txt") << (index % 2 == 0 ? "a red [trigger]" : "two small houses by the sea in the evening");
  }

  // `more`: lines of the configuration's train section and of the sections behind it. `model`: a path, or a folder of
  // tests/golden/pipelines.
  std::string Config(const std::string& output, int steps, const std::string& more = "",
                     const std::string& model = "pixart_sigma") const {
    const std::string path = absl::StrCat(folder(), "/", output, ".yaml");
    std::ofstream(path) << "model: " << fs::path("tests/golden/pipelines") / model << "\noutput: " << folder() << "/"
                        << output
                        << "\nseed: 7\ntrigger_word: zzz\n"
                           "datasets:\n  - folder_path: "
                        << images() << "\n    resolution: 64\n    caption_dropout_rate: 0.3\n"
                        << (more.find("network:") == std::string::npos ? "network:\n  type: full\n" : "")
                        << "train:\n  dtype: fp64\n  batch_size: 2\n  lr: 0.01\n  steps: " << steps << "\n"
                        << more;
    return path;
  }

  std::unique_ptr<ChildProcess> Start(std::vector<std::string> arguments,
                                      std::map<std::string, std::string> environment = {}) const {
    ChildOptions options;
    arguments.insert(arguments.begin(), TESSERA_EXECUTABLE);
    options.arguments = std::move(arguments);
    options.folder = fs::current_path();
    options.environment = {{"PATH", "/usr/bin:/bin"},
                           {"TESSERA_WORKER", TESSERA_WORKER_EXECUTABLE},
                           {"OMP_WAIT_POLICY", "PASSIVE"},
                           {"XDG_RUNTIME_DIR", folder()}};
    options.environment.merge(environment);
    return std::make_unique<ChildProcess>(options);
  }

  static Finished Finish(ChildProcess& child) {
    Finished finished{.exit_code = child.Wait(), .events = {}, .errors = child.errors()};
    for (absl::string_view line : absl::StrSplit(child.output(), '\n', absl::SkipEmpty())) {
      finished.events.push_back(boost::json::parse(std::string(line)).as_object());
    }
    return finished;
  }

  Finished Train(const std::string& config, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"train", config, "--json", "--threads=2"});
    return Finish(*Start(std::move(more)));
  }

  static std::string ErrorOf(const Finished& finished) {
    const std::vector<boost::json::object> errors = finished.Of("error");
    return errors.empty() ? finished.errors : std::string(errors.back().at("message").as_string());
  }

  static std::string Bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static std::string Weights(const Finished& finished) {
    return Bytes(finished.Path("exported") + "/transformer/diffusion_pytorch_model.safetensors");
  }

 private:
  TestFolder folder_;
};

// The largest difference of two pictures.
int Largest(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  if (a.size() != b.size() || a.empty()) return 256;
  int largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

void ExpectNear(const std::vector<double>& losses, const std::vector<double>& expected, double relative) {
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_LE(std::abs(losses[i] - expected[i]), relative * std::abs(expected[i])) << "step " << i + 1;
  }
}

// From the files to the losses: the same data, noise and gradients on every layout.
TEST_F(TrainCommandTest, EveryTopologyTakesTheSameSteps) {
  for (const auto& [model, layouts] : std::map<std::string, std::vector<std::string>>{
           {"pixart_sigma",
            {"data: 2\n  zero: 1", "tensor: 2", "ring: 3", "data: 2\n  pipe: 2",
             "data: 2\n  tensor: 2\n  sequence_parallel: true\n  zero: 3"}},
           {"flux_dev", {"ulysses: 2", "data: 2\n  tensor: 2\n  zero: 3"}}}) {
    const Finished serial = Train(Config(model, 3, "  gradient_accumulation_steps: 2\n", model));
    ASSERT_EQ(serial.exit_code, 0) << ErrorOf(serial);
    ASSERT_EQ(serial.Losses().size(), 3u);
    EXPECT_NE(serial.Losses()[0], serial.Losses()[1]);
    for (size_t i = 0; i < layouts.size(); ++i) {
      const Finished finished =
          Train(Config(absl::StrCat(model, i), 3,
                       absl::StrCat("  gradient_accumulation_steps: 2\nparallelism:\n  ", layouts[i], "\n"), model));
      ASSERT_EQ(finished.exit_code, 0) << model << ", " << layouts[i] << ": " << ErrorOf(finished);
      SCOPED_TRACE(absl::StrCat(model, ", ", layouts[i]));
      ExpectNear(finished.Losses(), serial.Losses(), 1e-9);
    }
  }
}

// The numbers that weights begin with are those of the whole matrices, and a run that is resumed has its own.
TEST_F(TrainCommandTest, ARunFromScratchIsTheSameOnEveryTopology) {
  const std::string scratch = "network: {type: full, from_scratch: true}\n";
  const Finished serial = Train(Config("serial", 3, scratch));
  ASSERT_EQ(serial.exit_code, 0) << ErrorOf(serial);
  const Finished trained = Train(Config("trained", 1));
  EXPECT_NE(serial.Losses()[0], trained.Losses().at(0));
  const std::string tensor = scratch + "parallelism:\n  tensor: 2\n";
  const Finished first = Train(Config("tensor", 2, tensor), {"--resume=latest"});  // which begins where there is none
  ASSERT_EQ(first.exit_code, 0) << ErrorOf(first);
  ExpectNear(first.Losses(), {serial.Losses()[0], serial.Losses()[1]}, 1e-9);
  const Finished pipe = Train(Config("pipe", 1, scratch + "parallelism:\n  pipe: 2\n"));
  ASSERT_EQ(pipe.exit_code, 0) << ErrorOf(pipe);
  ExpectNear(pipe.Losses(), {serial.Losses()[0]}, 1e-9);
  const Finished last = Train(Config("tensor", 3, scratch), {"--resume=latest"});
  ASSERT_EQ(last.exit_code, 0) << ErrorOf(last);
  ExpectNear(last.Losses(), {serial.Losses()[2]}, 1e-9);
}

TEST_F(TrainCommandTest, ARunThatIsResumedAndExtendedEqualsOneRun) {
  const Finished whole = Train(Config("whole", 5, "  ema_decay: 0.9\n"));
  ASSERT_EQ(whole.exit_code, 0) << ErrorOf(whole);
  ASSERT_EQ(Train(Config("parts", 2, "  ema_decay: 0.9\n")).exit_code, 0);
  const Finished second = Train(Config("parts", 3, "  ema_decay: 0.9\n"), {"--resume=latest"});
  ASSERT_EQ(second.exit_code, 0) << ErrorOf(second);
  EXPECT_EQ(second.Of("training").front().at("step").to_number<int>(), 2);
  const Finished third = Train(Config("parts", 5, "  ema_decay: 0.9\n"), {"--resume", second.Path("checkpoint")});
  ASSERT_EQ(third.exit_code, 0) << ErrorOf(third);
  EXPECT_EQ(third.Losses().back(), whole.Losses().back());
  ASSERT_FALSE(Weights(whole).empty());
  EXPECT_EQ(Weights(third), Weights(whole));
  EXPECT_NE(Weights(second), Weights(whole));
}

TEST_F(TrainCommandTest, ARunGoesOnOnAnotherTopology) {
  const Finished whole = Train(Config("whole", 5));
  ASSERT_EQ(Train(Config("parts", 1, "parallelism:\n  tensor: 2\n")).exit_code, 0);
  ASSERT_EQ(Train(Config("parts", 2, "parallelism:\n  data: 2\n  zero: 1\n"), {"--resume=latest"}).exit_code, 0);
  ASSERT_EQ(Train(Config("parts", 3, "parallelism:\n  data: 2\n  zero: 3\n"), {"--resume=latest"}).exit_code, 0);
  ASSERT_EQ(Train(Config("parts", 4, "parallelism:\n  pipe: 2\n"), {"--resume=latest"}).exit_code, 0);
  const Finished last = Train(Config("parts", 5, "parallelism:\n  ulysses: 2\n"), {"--resume=latest"});
  ASSERT_EQ(last.exit_code, 0) << ErrorOf(last);
  ExpectNear(last.Losses(), {whole.Losses().back()}, 1e-9);
}

// As a Job starts and restarts it.
TEST_F(TrainCommandTest, OneCommandLineBeginsGoesOnAndExportsWhatIsMissing) {
  const Finished first = Train(Config("run", 2), {"--resume=latest"});
  ASSERT_EQ(first.exit_code, 0) << ErrorOf(first);
  EXPECT_EQ(first.Of("training").front().at("step").to_number<int>(), 0);
  ASSERT_EQ(first.Of("warning").size(), 1u);
  EXPECT_THAT(std::string(first.Of("warning").front().at("message").as_string()), HasSubstr("no checkpoint yet"));
  EXPECT_EQ(Weights(first), Weights(Train(Config("other", 2))));
  // Killed between its last checkpoint and what is made of it.
  const std::string weights = Weights(first);
  fs::remove_all(first.Path("exported"));
  const Finished second = Train(Config("run", 2), {"--resume=latest"});
  ASSERT_EQ(second.exit_code, 0) << ErrorOf(second);
  EXPECT_TRUE(second.Losses().empty());
  EXPECT_EQ(second.Path("exported"), first.Path("exported"));
  EXPECT_EQ(Weights(second), weights);
  // None of several checkpoints whole: that is no new run.
  fs::resize_file(first.Path("checkpoint") + "/rank-00000-of-00001.safetensors", 7);
  const Finished third = Train(Config("run", 3), {"--resume=latest"});
  EXPECT_NE(third.exit_code, 0);
  EXPECT_THAT(ErrorOf(third), HasSubstr("no whole checkpoint"));
}

// Samples by the ordinary pipeline and losses of the average, on weights of which no rank has all.
TEST_F(TrainCommandTest, WeightsThatAreSharedOutMakeTheSamplesOfOneRank) {
  const std::string settings =
      "  ema_decay: 0.9\nsample:\n  sample_every: 2\n  prompts: [a red house]\n  steps: 2\n  width: 64\n"
      "  height: 64\n";
  const Finished one = Train(Config("one", 2, settings));
  ASSERT_EQ(one.exit_code, 0) << ErrorOf(one);
  const auto sample = [](const Finished& run) {
    return server::DecodeImage(Bytes(std::string(run.Of("sample").at(0).at("path").as_string())))->image.rgb;
  };
  const auto evaluated = [](const Finished& run) {
    const boost::json::object event = run.Of("evaluated").at(0);
    std::vector<double> losses;
    for (const boost::json::value& loss : event.at("losses").as_array()) {
      losses.push_back(loss.to_number<double>());
    }
    return losses;
  };
  for (const char* parallelism : {"data: 2\n  zero: 3", "pipe: 2\n  data: 2\n  zero: 3"}) {
    SCOPED_TRACE(parallelism);
    const Finished two =
        Train(Config(std::string(parallelism, 4), 2, absl::StrCat(settings, "parallelism:\n  ", parallelism, "\n")));
    ASSERT_EQ(two.exit_code, 0) << ErrorOf(two);
    EXPECT_LE(Largest(sample(two), sample(one)), 1);
    ExpectNear(evaluated(two), evaluated(one), 1e-9);
  }
}

TEST_F(TrainCommandTest, AnInterruptedRunWritesACheckpointAndGoesOn) {
  const Finished whole = Train(Config("whole", 5));
  const std::string config = Config("parts", 100000);
  const std::unique_ptr<ChildProcess> child = Start({"train", config, "--json", "--threads=2"});
  ASSERT_TRUE(child->WaitForOutput("\"event\":\"trained\",\"step\":2"));
  child->Signal(SIGTERM);
  const Finished stopped = Finish(*child);
  EXPECT_EQ(stopped.exit_code, 130);
  ASSERT_FALSE(stopped.Path("checkpoint").empty());
  const auto done = static_cast<int>(stopped.Losses().size());
  const Finished last = Train(Config("parts", done + 1), {"--resume=latest"});
  ASSERT_EQ(last.exit_code, 0) << ErrorOf(last);
  const Finished undisturbed = Train(Config("undisturbed", done + 1));
  EXPECT_EQ(Weights(last), Weights(undisturbed));
}

TEST_F(TrainCommandTest, AKilledRankEndsTheRunAndTheLastCheckpointGoesOn) {
  const std::string often = "parallelism:\n  data: 2\nsave:\n  save_every: 1\n  max_step_saves_to_keep: 2\n";
  const std::unique_ptr<ChildProcess> child = Start({"train", Config("parts", 100000, often), "--json", "--threads=2"});
  ASSERT_TRUE(child->WaitForOutput("\"event\":\"saved\",\"step\":2"));
  const std::vector<pid_t> workers = ProcessesWith(TESSERA_WORKER_EXECUTABLE, "XDG_RUNTIME_DIR", folder());
  ASSERT_EQ(workers.size(), 2u);
  kill(workers.back(), SIGKILL);
  const Finished killed = Finish(*child);
  EXPECT_EQ(killed.exit_code, 6) << ErrorOf(killed);
  EXPECT_THAT(ErrorOf(killed), HasSubstr("killed by signal 9"));
  int checkpoints = 0;
  for (const auto& entry : fs::directory_iterator(folder() + "/parts")) {
    checkpoints += entry.path().filename().string().starts_with("checkpoint-");
  }
  EXPECT_LE(checkpoints, 3);  // the last ones, and one that was being written in their place
  const auto done = static_cast<int>(killed.Losses().size());
  const Finished last = Train(Config("parts", done + 2, often), {"--resume=latest"});
  ASSERT_EQ(last.exit_code, 0) << ErrorOf(last);
  const Finished undisturbed = Train(Config("undisturbed", done + 2, often));
  EXPECT_EQ(Weights(last), Weights(undisturbed));
}

// At whatever moment all its processes are killed: while it steps, or while it writes.
TEST_F(TrainCommandTest, ARunThatIsKilledAndResumedEqualsOneThatIsNot) {
  const std::string often = "save:\n  save_every: 1\n  max_step_saves_to_keep: 2\n";
  const std::string config = Config("parts", 8, often);
  for (const char* moment : {"\"trained\",\"step\":1,", "\"trained\",\"step\":3,", "\"saved\",\"step\":5,"}) {
    const std::unique_ptr<ChildProcess> child = Start({"train", config, "--json", "--threads=2", "--resume=latest"});
    ASSERT_TRUE(child->WaitForOutput(moment)) << moment << ": " << child->errors();
    const std::vector<pid_t> workers = ProcessesWith(TESSERA_WORKER_EXECUTABLE, "XDG_RUNTIME_DIR", folder());
    child->Signal(SIGKILL);
    for (const pid_t worker : workers) kill(worker, SIGKILL);
    EXPECT_EQ(child->Wait(), 1000 + SIGKILL);
    for (const pid_t worker : workers) ASSERT_TRUE(WaitUntilGone(worker));
  }
  const Finished last = Train(config, {"--resume=latest"});
  ASSERT_EQ(last.exit_code, 0) << ErrorOf(last);
  const Finished undisturbed = Train(Config("undisturbed", 8, often));
  ASSERT_EQ(undisturbed.exit_code, 0) << ErrorOf(undisturbed);
  EXPECT_EQ(Weights(last), Weights(undisturbed));
  for (const auto& entry : fs::directory_iterator(folder() + "/parts")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".checkpoint-")) << entry.path();
  }
}

// What a run of random kills did, which a failure is told with.
struct Kills {
  int starting = 0, stepping = 0, saving = 0;  // where the processes were
  std::string told;
};

class TrainingKillsTest : public TrainCommandTest, public testing::WithParamInterface<int> {
 protected:
  static constexpr char kSettings[] =
      "  ema_decay: 0.9\nparallelism:\n  data: 2\n  zero: 1\nsave:\n  save_every: 1\n  max_step_saves_to_keep: 2\n";

  std::vector<pid_t> Workers() const { return ProcessesWith(TESSERA_WORKER_EXECUTABLE, "XDG_RUNTIME_DIR", folder()); }

  std::vector<std::string> EntriesOf(const std::string& output, const std::string& prefix) const {
    std::vector<std::string> names;
    std::error_code none_yet;
    for (const auto& entry : fs::directory_iterator(absl::StrCat(folder(), "/", output), none_yet)) {
      const std::string name = entry.path().filename();
      if (name.starts_with(prefix)) names.push_back(name);
    }
    return names;
  }

  int NewestStep(const std::string& output) const {
    int newest = 0;
    for (const std::string& name : EntriesOf(output, "checkpoint-")) {
      newest = std::max(newest, std::stoi(name.substr(std::string("checkpoint-").size())));
    }
    return newest;
  }

  // Starts or goes on, kills one process or all at a moment that `random` draws, and waits until none is left.
  void RunAndKill(const std::string& config, std::mt19937_64& random, Kills& kills) const {
    const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
    // A run takes a while until its first step; a step and its checkpoint take some ten milliseconds.
    const int steps = draw(0, 3), microseconds = draw(0, steps == 0 ? 400'000 : 40'000), victim = draw(0, 3);
    const int first = NewestStep("parts") + 1;
    const std::unique_ptr<ChildProcess> child = Start({"train", config, "--json", "--threads=2", "--resume=latest"});
    if (steps > 0) {
      ASSERT_TRUE(child->WaitForOutput(absl::StrCat("\"trained\",\"step\":", first + steps - 1, ",")))
          << child->output() << child->errors();
    }
    const absl::Time moment = absl::Now() + absl::Microseconds(microseconds);
    ASSERT_TRUE(WaitUntil("the moment of the kill", [&] { return absl::Now() >= moment; }));
    const std::vector<pid_t> workers = Workers();
    const bool one_rank = victim < 2 && !workers.empty();
    if (one_rank) {
      kill(workers[static_cast<size_t>(victim) % workers.size()], SIGKILL);
    } else {
      child->Signal(SIGKILL);
      for (const pid_t worker : victim == 2 ? std::vector<pid_t>() : workers) kill(worker, SIGKILL);
    }
    const int code = child->Wait();
    EXPECT_EQ(code, one_rank ? 6 : 1000 + SIGKILL) << child->output() << child->errors();
    ASSERT_TRUE(WaitUntil("the workers' end", [&] { return Workers().empty(); }));
    const bool started = child->output().find("\"event\":\"trained\"") != std::string::npos;
    const bool saving = !EntriesOf("parts", ".checkpoint-").empty();
    ++(saving ? kills.saving : started ? kills.stepping : kills.starting);
    absl::StrAppend(&kills.told, steps, " steps and ", microseconds, " us, then ",
                    one_rank      ? "a rank"
                    : victim == 2 ? "the command"
                                  : "everything",
                    saving ? ", within saving" : "", "; the newest checkpoint is of step ", NewestStep("parts"), "\n");
  }

  // The numbers of each step, in order; a step that is there twice or not at all fails the test.
  std::vector<std::string> LoggedSteps(const std::string& output) const {
    std::vector<std::string> steps;
    for (absl::string_view line :
         absl::StrSplit(Bytes(absl::StrCat(folder(), "/", output, "/log.jsonl")), '\n', absl::SkipEmpty())) {
      const boost::json::object entry = boost::json::parse(std::string(line)).as_object();
      if (!entry.contains("loss")) continue;
      steps.push_back(absl::StrCat(boost::json::serialize(entry.at("step")), " ",
                                   boost::json::serialize(entry.at("loss")), " ",
                                   boost::json::serialize(entry.at("grad_norm"))));
    }
    return steps;
  }
};

// Ranks, the command or everything killed at random moments, again and again; scripts/kill-training.sh for more.
TEST_P(TrainingKillsTest, ARunKilledAtRandomMomentsEqualsOneThatIsNot) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  const int count = FaultKills(8, 30);
  Kills kills;
  for (int i = 0; i < count && !HasFailure(); ++i) RunAndKill(Config("parts", 100000, kSettings), random, kills);
  std::cout << "seed " << GetParam() << ": " << count << " kills, " << kills.starting << " before the first step, "
            << kills.stepping << " between checkpoints, " << kills.saving << " within saving\n";
  SCOPED_TRACE(kills.told);
  ASSERT_FALSE(HasFailure());
  const int steps = NewestStep("parts") + 2;
  const Finished last = Train(Config("parts", steps, kSettings), {"--resume=latest"});
  ASSERT_EQ(last.exit_code, 0) << ErrorOf(last);
  for (const boost::json::object& warning : last.Of("warning")) {
    EXPECT_THAT(std::string(warning.at("message").as_string()), Not(HasSubstr("not whole")));
  }
  const Finished undisturbed = Train(Config("undisturbed", steps, kSettings));
  ASSERT_EQ(undisturbed.exit_code, 0) << ErrorOf(undisturbed);
  ASSERT_FALSE(Weights(undisturbed).empty());
  EXPECT_EQ(Weights(last), Weights(undisturbed));
  for (const char* file : {"/rank-00000-of-00002.safetensors", "/rank-00001-of-00002.safetensors"}) {
    EXPECT_EQ(Bytes(last.Path("checkpoint") + file), Bytes(undisturbed.Path("checkpoint") + file)) << file;
  }
  EXPECT_EQ(LoggedSteps("parts").size(), static_cast<size_t>(steps));
  EXPECT_EQ(LoggedSteps("parts"), LoggedSteps("undisturbed"));
  EXPECT_THAT(EntriesOf("parts", "."), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Random, TrainingKillsTest, testing::ValuesIn(FaultSeeds()), kSeedName);

TEST_F(TrainCommandTest, ADamagedCheckpointIsPassedOver) {
  const std::string often = "save:\n  save_every: 1\n";
  const Finished first = Train(Config("parts", 3, often));
  ASSERT_EQ(first.exit_code, 0) << ErrorOf(first);
  const std::string file = first.Path("checkpoint") + "/rank-00000-of-00001.safetensors";
  ASSERT_TRUE(fs::exists(file));
  fs::resize_file(file, fs::file_size(file) - 1);
  const Finished second = Train(Config("parts", 4, often), {"--resume=latest"});
  ASSERT_EQ(second.exit_code, 0) << ErrorOf(second);
  EXPECT_EQ(second.Of("training").front().at("step").to_number<int>(), 2);
  ASSERT_FALSE(second.Of("warning").empty());
  EXPECT_THAT(std::string(second.Of("warning").front().at("message").as_string()), HasSubstr("checkpoint-3"));
}

TEST_F(TrainCommandTest, WhatWasTrainedIsServedAndSamplesAreMade) {
  const Finished finished = Train(
      Config("run", 2,
             "sample:\n  sample_every: 2\n  prompts: [a red house, a tree]\n  steps: 2\n  width: 64\n  height: 64\n"));
  ASSERT_EQ(finished.exit_code, 0) << ErrorOf(finished);
  ASSERT_EQ(finished.Of("sample").size(), 2u);
  ASSERT_EQ(finished.Of("grid").size(), 1u);
  const auto grid = server::DecodeImage(Bytes(std::string(finished.Of("grid")[0].at("path").as_string())));
  ASSERT_TRUE(grid.ok());
  EXPECT_EQ(grid->image.width, 2 * 68);
  for (size_t i = 0; i < 2; ++i) {
    const auto one = server::DecodeImage(Bytes(std::string(finished.Of("sample")[i].at("path").as_string())));
    ASSERT_TRUE(one.ok());
    for (size_t y = 0; y < 64; ++y) {
      EXPECT_TRUE(std::equal(one->image.rgb.begin() + static_cast<std::ptrdiff_t>(y * 64 * 3),
                             one->image.rgb.begin() + static_cast<std::ptrdiff_t>((y + 1) * 64 * 3),
                             grid->image.rgb.begin() + static_cast<std::ptrdiff_t>((y * 136 + i * 68) * 3)))
          << "picture " << i << ", row " << y;
    }
  }
  ASSERT_EQ(finished.Of("evaluated").size(), 1u);
  EXPECT_EQ(finished.Of("evaluated")[0].at("losses").as_array().size(), 8u);
  const std::string image = folder() + "/served.png";
  const std::unique_ptr<ChildProcess> served =
      Start({"generate", "--model", finished.Path("exported"), "--dtype=fp64", "--steps=2", "--size=64x64", "--seed=42",
             "--threads=2", "-o", image, "a red house"});
  ASSERT_EQ(served->Wait(), 0) << served->errors();
  // The sample was made by the weights in training, the image by the files, which store them in single precision.
  const std::vector<uint8_t> made = server::DecodeImage(Bytes(image))->image.rgb;
  const std::vector<uint8_t> sample =
      server::DecodeImage(Bytes(std::string(finished.Of("sample")[0].at("path").as_string())))->image.rgb;
  EXPECT_LE(Largest(made, sample), 1);
}

// FLUX.1's files are those of diffusers and of kohya, PixArt's the folders of PEFT.
TEST_F(TrainCommandTest, AnAdapterIsTrainedAlikeOnEveryTopologyAndServed) {
  for (const auto& [model, layouts] : std::map<std::string, std::vector<std::string>>{
           {"flux_dev", {"tensor: 2", "ulysses: 2", "tensor: 2\n  sequence_parallel: true"}},
           {"pixart_sigma", {"data: 2\n  zero: 3", "pipe: 2"}}}) {
    const std::string lora =
        "sample:\n  sample_every: 3\n  prompts: [a red house]\n  steps: 2\n  width: 64\n  height: 64\n"
        "network: {type: lora, linear: 4, linear_alpha: 8}\n";
    const Finished serial = Train(Config(absl::StrCat(model, 0), 3, lora, model));
    ASSERT_EQ(serial.exit_code, 0) << ErrorOf(serial);
    for (size_t i = 0; i < layouts.size(); ++i) {
      const std::string& layout = layouts[i];
      const Finished finished =
          Train(Config(absl::StrCat(model, i + 1), 3, absl::StrCat(lora, "parallelism:\n  ", layout, "\n"), model));
      ASSERT_EQ(finished.exit_code, 0) << layout << ": " << ErrorOf(finished);
      SCOPED_TRACE(absl::StrCat(model, ", ", layout));
      ExpectNear(finished.Losses(), serial.Losses(), 1e-9);
    }
    const auto picture = [&](const std::string& adapter) {
      const std::string image = folder() + "/served.png";
      std::vector<std::string> arguments = {
          "generate",     "--model",     absl::StrCat("tests/golden/pipelines/", model),
          "--dtype=fp64", "--steps=2",   "--size=64x64",
          "--seed=42",    "--threads=2", "--overwrite",
          "-o",           image,         "a red house"};
      if (!adapter.empty()) arguments.insert(arguments.end(), {"--lora", adapter});
      const std::unique_ptr<ChildProcess> served = Start(std::move(arguments));
      EXPECT_EQ(served->Wait(), 0) << served->errors();
      return server::DecodeImage(Bytes(image))->image.rgb;
    };
    const std::vector<uint8_t> sample =
        server::DecodeImage(Bytes(std::string(serial.Of("sample")[0].at("path").as_string())))->image.rgb;
    const std::string exported = serial.Path("exported");
    EXPECT_GT(Largest(picture(""), sample), 1);
    EXPECT_LE(Largest(picture(exported), sample), 1);
    if (model == "pixart_sigma") {
      EXPECT_TRUE(fs::exists(exported.substr(0, exported.rfind(".safetensors")) + "/adapter_config.json"));
    } else {
      const std::string kohya = exported.substr(0, exported.rfind(".safetensors")) + ".kohya.safetensors";
      EXPECT_LE(Largest(picture(kohya), sample), 1);
    }
  }
}

// The base is held in eight bits, by every rank and after every start the same ones.
TEST_F(TrainCommandTest, AnAdapterIsTrainedBesideABaseInEightBits) {
  const std::string lora =
      "  quantize: true\nsample:\n  sample_every: 4\n  prompts: [a red house]\n  steps: 2\n  width: 64\n  height: 64\n"
      "network: {type: lora, linear: 4, linear_alpha: 8}\n";
  const Finished serial = Train(Config("serial", 4, lora));
  ASSERT_EQ(serial.exit_code, 0) << ErrorOf(serial);
  EXPECT_EQ(serial.Of("sample").size(), 1u);
  const Finished plain = Train(Config("plain", 1, "network: {type: lora, linear: 4, linear_alpha: 8}\n"));
  ASSERT_EQ(plain.exit_code, 0) << ErrorOf(plain);
  EXPECT_NE(plain.Losses()[0], serial.Losses()[0]);
  EXPECT_NEAR(plain.Losses()[0], serial.Losses()[0], 0.05 * plain.Losses()[0]);
  const Finished tensor = Train(Config("tensor", 4, lora + "parallelism:\n  tensor: 2\n"));
  ASSERT_EQ(tensor.exit_code, 0) << ErrorOf(tensor);
  ExpectNear(tensor.Losses(), serial.Losses(), 1e-9);
  ASSERT_EQ(Train(Config("parts", 2, lora)).exit_code, 0);
  const Finished last = Train(Config("parts", 4, lora), {"--resume=latest"});
  ASSERT_EQ(last.exit_code, 0) << ErrorOf(last);
  ASSERT_FALSE(Bytes(serial.Path("exported")).empty());
  EXPECT_EQ(Bytes(last.Path("exported")), Bytes(serial.Path("exported")));
  const std::unique_ptr<ChildProcess> served =
      Start({"generate", "--model", "tests/golden/pipelines/pixart_sigma", "--dtype=fp64", "--steps=2", "--size=64x64",
             "--threads=2", "-o", folder() + "/served.png", "a red house", "--lora", serial.Path("exported")});
  EXPECT_EQ(served->Wait(), 0) << served->errors();
}

TEST_F(TrainCommandTest, ADryRunSaysWhatTheRunWillDoAndLeavesNothing) {
  const Finished finished = Train(
      Config("run", 7, "  gradient_accumulation_steps: 2\nparallelism:\n  data: 2\n  tensor: 2\n"), {"--dry-run"});
  ASSERT_EQ(finished.exit_code, 0) << ErrorOf(finished);
  ASSERT_EQ(finished.Of("plan").size(), 1u);
  const boost::json::object plan = finished.Of("plan").front();
  EXPECT_EQ(plan.at("buckets").as_array().size(), 2u);
  EXPECT_EQ(plan.at("steps_per_epoch").to_number<int>(), 2);  // 6 images, 4 a step
  EXPECT_EQ(plan.at("ranks").to_number<int>(), 4);
  EXPECT_EQ(plan.at("images_of_a_rank").to_number<int>(), 1);
  EXPECT_GT(plan.at("step_flops").to_number<double>(), 0);
  EXPECT_EQ(plan.at("stages_idle").to_number<double>(), 0);
  int64_t parts = 0;
  for (const char* part : {"weight_bytes", "adapter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes"}) {
    parts += plan.at(part).to_number<int64_t>();
  }
  EXPECT_EQ(plan.at("memory_bytes").to_number<int64_t>(), parts);
  const Finished shared = Train(Config("run", 7,
                                       "  gradient_accumulation_steps: 2\nparallelism:\n  data: 2\n  tensor: 2\n"
                                       "  sequence_parallel: true\n"),
                                {"--dry-run"});
  ASSERT_EQ(shared.Of("plan").size(), 1u);
  const auto saved = plan.at("sequence_parallel_saves_bytes").to_number<int64_t>();
  EXPECT_GT(saved, 0);
  EXPECT_EQ(shared.Of("plan").front().at("activation_bytes").to_number<int64_t>(),
            plan.at("activation_bytes").to_number<int64_t>() - saved);
  const Finished stages =
      Train(Config("run", 7, "  gradient_accumulation_steps: 2\nparallelism:\n  data: 2\n  pipe: 2\n"), {"--dry-run"});
  ASSERT_EQ(stages.Of("plan").size(), 1u);
  EXPECT_EQ(stages.Of("plan").front().at("ranks").to_number<int>(), 4);
  EXPECT_NEAR(stages.Of("plan").front().at("stages_idle").to_number<double>(), 1.0 / 3, 1e-12);
  EXPECT_FALSE(fs::exists(folder() + "/run"));
}

TEST_F(TrainCommandTest, ImagesWithoutACaptionAreTrainedOnAndNamed) {
  fs::remove(images() + "/1.txt");
  std::ofstream(images() + "/3.txt") << " \n";
  const Finished finished = Train(Config("run", 2));
  ASSERT_EQ(finished.exit_code, 0) << ErrorOf(finished);
  ASSERT_EQ(finished.Of("warning").size(), 1u);
  EXPECT_THAT(std::string(finished.Of("warning").front().at("message").as_string()),
              AllOf(HasSubstr("2 images without a caption: "), HasSubstr("1.png"), HasSubstr("3.png")));
}

TEST_F(TrainCommandTest, StepsThatAreNotFiniteAreSkippedCountedAndEndTheRun) {
  const std::string model = folder() + "/model";
  fs::copy("tests/golden/pipelines/pixart_sigma", model, fs::copy_options::recursive);
  const std::string weights = model + "/transformer/diffusion_pytorch_model.safetensors";
  std::string bytes = Bytes(weights);
  const std::string nan("\x00\x00\xc0\x7f", 4);  // the last number of the file, in single precision
  bytes.replace(bytes.size() - nan.size(), nan.size(), nan);
  std::ofstream(weights, std::ios::binary) << bytes;
  const Finished finished = Train(Config("run", 100, "  max_nonfinite_steps: 2\n", model));
  EXPECT_NE(finished.exit_code, 0);
  ASSERT_EQ(finished.Of("trained").size(), 3u);
  for (const boost::json::object& step : finished.Of("trained")) EXPECT_TRUE(step.at("skipped").as_bool());
  EXPECT_THAT(ErrorOf(finished), AllOf(HasSubstr("not finite in 3 steps in a row"), HasSubstr("no checkpoint was")));
}

#ifdef FULL_DISK_LIBRARY
TEST_F(TrainCommandTest, AFullDiskLeavesACheckpointOutAndTheNextIsWritten) {
  const std::string often = "save:\n  save_every: 1\n", full = folder() + "/full";
  const std::map<std::string, std::string> disk = {
      {"LD_PRELOAD", FULL_DISK_LIBRARY}, {"FULL_DISK", full}, {"FULL_DISK_FOLDER", folder() + "/parts"}};
  const std::unique_ptr<ChildProcess> child =
      Start({"train", Config("parts", 100000, often), "--json", "--threads=2"}, disk);
  ASSERT_TRUE(child->WaitForOutput("\"event\":\"saved\",\"step\":1,")) << child->errors();
  std::ofstream(full) << "";
  ASSERT_TRUE(child->WaitForOutput("no checkpoint of step")) << child->errors();
  fs::remove(full);
  child->Signal(SIGTERM);
  const Finished stopped = Finish(*child);
  EXPECT_EQ(stopped.exit_code, 130) << ErrorOf(stopped);
  const auto done = static_cast<int>(stopped.Losses().size());
  EXPECT_EQ(stopped.Path("checkpoint"), absl::StrCat(folder(), "/parts/checkpoint-", done));
  EXPECT_THAT(child->output(), HasSubstr("the disk is full"));
  const Finished last = Train(Config("parts", done + 1, often), {"--resume=latest"});
  ASSERT_EQ(last.exit_code, 0) << ErrorOf(last);
  EXPECT_EQ(Weights(last), Weights(Train(Config("undisturbed", done + 1, often))));
}

TEST_F(TrainCommandTest, AFullDiskCostsEncodingsAndNothingElse) {
  const std::string full = folder() + "/full";
  std::ofstream(full) << "";
  const std::unique_ptr<ChildProcess> child =
      Start({"train", Config("run", 2), "--json", "--threads=2"},
            {{"LD_PRELOAD", FULL_DISK_LIBRARY}, {"FULL_DISK", full}, {"FULL_DISK_FOLDER", folder() + "/run/cache"}});
  const Finished finished = Finish(*child);
  ASSERT_EQ(finished.exit_code, 0) << ErrorOf(finished);
  ASSERT_EQ(finished.Of("warning").size(), 1u);
  EXPECT_THAT(std::string(finished.Of("warning").front().at("message").as_string()),
              AllOf(HasSubstr("not kept for the next start"), HasSubstr("the disk is full")));
  EXPECT_EQ(Weights(finished), Weights(Train(Config("other", 2))));
}
#endif

TEST_F(TrainCommandTest, SaysWhatItCannotTrainOn) {
  const Finished first = Train(Config("run", 1));
  ASSERT_EQ(first.exit_code, 0) << ErrorOf(first);
  const auto refused = [&](const std::string& config, std::vector<std::string> more, int code, const char* reason) {
    const Finished finished = Train(config, std::move(more));
    EXPECT_EQ(finished.exit_code, code) << ErrorOf(finished);
    EXPECT_THAT(ErrorOf(finished), HasSubstr(reason));
  };
  refused(Config("run", 2), {}, 2, "--resume latest");
  refused(Config("run", 1), {"--resume=latest"}, 2, "train.steps");
  refused(Config("run", 2, "  max_grad_norm: 3\n"), {"--resume=latest"}, 2, "max_grad_norm");
  refused(Config("run", 2, "", "pixart_alpha"), {"--resume=latest"}, 2, "model");
  refused(Config("other", 2, "network: {type: lora, target_modules: [to_qq]}\n"), {}, 2, "the nearest is \"to_q\"");
  refused(Config("other", 2, "parallelism:\n  data: 3\n"), {}, 2, "batch_size");
  refused(Config("other", 2, "parallelism:\n  ulysses: 3\n"), {}, 2, "ulysses");
  refused(Config("other", 2, "parallelism:\n  pipe: 3\n"), {}, 2, "pipe");
  std::ofstream(images() + "/5.png", std::ios::binary) << "no picture";
  refused(Config("other", 2), {}, 2, "5.png");
}

}  // namespace
}  // namespace tessera
