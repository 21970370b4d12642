// Tests a `tessera train` that is interrupted, killed or out of disk space, and the runs that resume from what it left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/front/train_command_fixture.h"
#include "tests/support/fault_runs.h"
#include "tests/support/spoil_tensor.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Finished = FinishedTraining;
using TrainFaultsTest = TrainCommandFixture;

TEST_F(TrainFaultsTest, AnInterruptedRunWritesACheckpointAndGoesOn) {
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

TEST_F(TrainFaultsTest, AKilledRankEndsTheRunAndTheLastCheckpointGoesOn) {
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
  EXPECT_LE(checkpoints, 3);  // the last ones, and one being written to replace the oldest
  const auto done = static_cast<int>(killed.Losses().size());
  const Finished last = Train(Config("parts", done + 2, often), {"--resume=latest"});
  ASSERT_EQ(last.exit_code, 0) << ErrorOf(last);
  const Finished undisturbed = Train(Config("undisturbed", done + 2, often));
  EXPECT_EQ(Weights(last), Weights(undisturbed));
}

// All processes are killed at different times: during a step or while files are written.
TEST_F(TrainFaultsTest, ARunThatIsKilledAndResumedEqualsOneThatIsNot) {
  const std::string often = "save:\n  save_every: 1\n  max_step_saves_to_keep: 2\n";
  const auto newest_step = [this] {
    int newest = 0;
    std::error_code none_yet;
    for (const auto& entry : fs::directory_iterator(folder() + "/parts", none_yet)) {
      const std::string name = entry.path().filename(), prefix = "checkpoint-";
      if (name.starts_with(prefix)) newest = std::max(newest, std::stoi(name.substr(prefix.size())));
    }
    return newest;
  };
  for (const auto& [event, more] : {std::pair("trained", 1), {"trained", 2}, {"saved", 2}}) {
    const std::string moment = absl::StrCat("\"", event, "\",\"step\":", newest_step() + more, ",");
    const std::unique_ptr<ChildProcess> child =
        Start({"train", Config("parts", 100000, often), "--json", "--threads=2", "--resume=latest"});
    ASSERT_TRUE(child->WaitForOutput(moment)) << moment << ": " << child->errors();
    const std::vector<pid_t> workers = ProcessesWith(TESSERA_WORKER_EXECUTABLE, "XDG_RUNTIME_DIR", folder());
    child->Signal(SIGKILL);
    for (const pid_t worker : workers) kill(worker, SIGKILL);
    EXPECT_EQ(child->Wait(), 1000 + SIGKILL);
    for (const pid_t worker : workers) ASSERT_TRUE(WaitUntilGone(worker));
  }
  const int steps = newest_step() + 3;
  const Finished last = Train(Config("parts", steps, often), {"--resume=latest"});
  ASSERT_EQ(last.exit_code, 0) << ErrorOf(last);
  const Finished undisturbed = Train(Config("undisturbed", steps, often));
  ASSERT_EQ(undisturbed.exit_code, 0) << ErrorOf(undisturbed);
  EXPECT_EQ(Weights(last), Weights(undisturbed));
  for (const auto& entry : fs::directory_iterator(folder() + "/parts")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".checkpoint-")) << entry.path();
  }
}

// What the random kills of a run did. Printed if the test fails.
struct Kills {
  int starting = 0, stepping = 0, saving = 0;  // what the processes were doing
  std::string report;
};

class TrainingKillsTest : public TrainFaultsTest, public testing::WithParamInterface<int> {
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

  // Starts or resumes a run, kills one process or all at a time drawn from `random`, and waits until none is left.
  void RunAndKill(const std::string& config, std::mt19937_64& random, Kills& kills) const {
    const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
    // The first step takes a while to come; after it, a step and its checkpoint take some ten milliseconds.
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
    absl::StrAppend(&kills.report, steps, " steps and ", microseconds, " us, then ",
                    one_rank      ? "a rank"
                    : victim == 2 ? "the command"
                                  : "everything",
                    saving ? ", within saving" : "", "; the newest checkpoint is of step ", NewestStep("parts"), "\n");
  }

  // Returns step, loss and gradient norm of each logged step, in order, so that repeated and missing steps show.
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

// Kills ranks, the command, or everything at random times, repeatedly; scripts/kill-training.sh does more of it.
TEST_P(TrainingKillsTest, ARunKilledAtRandomMomentsEqualsOneThatIsNot) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  const int count = FaultKills(8, 30);
  Kills kills;
  for (int i = 0; i < count && !HasFailure(); ++i) RunAndKill(Config("parts", 100000, kSettings), random, kills);
  std::cout << "seed " << GetParam() << ": " << count << " kills, " << kills.starting << " before the first step, "
            << kills.stepping << " between checkpoints, " << kills.saving << " within saving\n";
  SCOPED_TRACE(kills.report);
  ASSERT_FALSE(HasFailure());
  const int steps = NewestStep("parts") + 2;
  const Finished last = Train(Config("parts", steps, kSettings), {"--resume=latest"});
  ASSERT_EQ(last.exit_code, 0) << ErrorOf(last);
  for (const boost::json::object& warning : last.Of("warning")) {
    EXPECT_THAT(std::string(warning.at("message").as_string()), Not(HasSubstr("not complete")));
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

TEST_F(TrainFaultsTest, ADamagedCheckpointIsPassedOver) {
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

TEST_F(TrainFaultsTest, StepsThatAreNotFiniteAreSkippedCountedAndEndTheRun) {
  const std::string model = folder() + "/model";
  fs::copy("tests/golden/pipelines/pixart_sigma", model, fs::copy_options::recursive);
  SpoilTensor(model + "/transformer/diffusion_pytorch_model.safetensors", "proj_out.weight", kLargestBf16);
  const std::string config = Config("run", 100, "  max_nonfinite_steps: 2\n", model);
  const std::string in_fp32 = absl::StrReplaceAll(Bytes(config), {{"dtype: fp64", "dtype: fp32"}});
  std::ofstream(config) << in_fp32;
  const Finished finished = Train(config);
  EXPECT_NE(finished.exit_code, 0);
  ASSERT_EQ(finished.Of("trained").size(), 3u) << ErrorOf(finished);
  for (const boost::json::object& step : finished.Of("trained")) EXPECT_TRUE(step.at("skipped").as_bool());
  EXPECT_THAT(ErrorOf(finished), AllOf(HasSubstr("not finite in 3 steps in a row"), HasSubstr("no checkpoint was")));
}

#ifdef FULL_DISK_LIBRARY
TEST_F(TrainFaultsTest, AFullDiskLeavesACheckpointOutAndTheNextIsWritten) {
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

TEST_F(TrainFaultsTest, AFullDiskCostsEncodingsAndNothingElse) {
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

}  // namespace
}  // namespace tessera
