// Kills and stops ranks of groups of real workers with the embedded model. Every death must be reported with the number
// of its rank, and the next group must make the undisturbed image.
//
// tests/support/fault_runs.h explains the number of kills and the seeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/load_parameters.h"
#include "control/parameters/loaded.h"
#include "server/workers/worker_group.h"
#include "tests/front/child_process.h"
#include "tests/support/fault_runs.h"
#include "tests/support/test_folder.h"
#include "tests/support/wait_until.h"

namespace tessera {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kSteps = 4;

// Returns the processor time of a process that has not been reaped. No value if it does not exist.
std::optional<absl::Duration> ProcessorTime(pid_t pid) {
  clockid_t clock = 0;
  timespec used = {};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) != 0) return std::nullopt;
  return absl::DurationFromTimespec(used);
}

enum Phase { kStarting, kLoading, kEncoding, kStepping, kDecoding, kPhases };
constexpr const char* kPhaseNames[] = {"starting", "loading", "encoding", "stepping", "decoding"};

class RankFaultsTest : public ::testing::Test {
 protected:
  RankFaultsTest() {
    setenv("TESSERA_WORKER", REAL_WORKER, 1);
    setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
  }

  ~RankFaultsTest() override {
    group_.reset();
    EXPECT_EQ(CountLeftovers(), 0);
  }

  // Counts processes and socket folders that remain without a group.
  int CountLeftovers() {
    int left = 0;
    for (const pid_t pid : pids_) left += kill(pid, 0) == 0 || errno != ESRCH;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_.path())) ++left;
    pids_.clear();
    return left;
  }

  // Runs a new group up to its image. Calls `at` at the beginning of each phase.
  absl::StatusOr<std::vector<uint8_t>> MakePicture(
      const std::string& layout, const std::function<void(Phase)>& at = [](Phase) {}) {
    group_.reset();
    absl::StatusOr<std::unique_ptr<server::WorkerGroup>> group =
        server::WorkerGroup::Start({.layout = *parallel::ParseLayout(layout)});
    if (!group.ok()) return group.status();
    group_ = *std::move(group);
    for (int rank = 0; rank < group_->ranks(); ++rank) pids_.push_back(group_->pid(rank));
    at(kStarting);
    if (absl::Status status = group_->Connect(absl::Minutes(1)); !status.ok()) return status;
    at(kLoading);
    if (absl::Status status = group_->Load({.model = EMBEDDED_MODEL, .placement = {.threads = 2}}).status();
        !status.ok()) {
      return status;
    }
    at(kEncoding);
    const absl::StatusOr<control::JobStarted> started = group_->StartJob(
        1, {.prompt = "red apple", .height = 64, .width = 64, .steps = kSteps, .guidance_scale = 4, .seed = 3});
    if (!started.ok()) return started.status();
    for (int step = 0; step < kSteps; ++step) {
      if (step == 1) at(kStepping);
      const absl::StatusOr<uint64_t> sequence = group_->SendStep({1});
      if (!sequence.ok()) return sequence.status();
      if (absl::Status status = group_->WaitForStep(*sequence).status(); !status.ok()) return status;
    }
    at(kDecoding);
    absl::StatusOr<control::DecodedPicture> picture = group_->Decode(1, *started);
    if (!picture.ok()) return picture.status();
    return std::move(picture->image.bytes);
  }

  TestFolder folder_;
  std::unique_ptr<server::WorkerGroup> group_;
  std::vector<pid_t> pids_;
};

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST_F(RankFaultsTest, AKilledRankIsNamedInEveryPhase) {
  for (int phase = 0; phase < kPhases; ++phase) {
    for (int rank = 0; rank < 2; ++rank) {
      const absl::Status status = MakePicture("cfg=2", [&](Phase at) {
                                    if (at == phase) kill(group_->pid(rank), SIGKILL);
                                  }).status();
      EXPECT_THAT(Text(status), HasSubstr(absl::StrCat("rank ", rank, " of 2"))) << kPhaseNames[phase];
      EXPECT_THAT(Text(status), HasSubstr("was killed by signal 9")) << kPhaseNames[phase];
    }
  }
}

TEST_F(RankFaultsTest, AStoppedRankIsNamedInEveryPhase) {
  for (int phase = kLoading; phase < kPhases; ++phase) {
    const int rank = phase % 2;
    const absl::Status status = MakePicture("cfg=2", [&](Phase at) {
                                  if (at == phase) kill(group_->pid(rank), SIGSTOP);
                                }).status();
    EXPECT_THAT(Text(status), HasSubstr(absl::StrCat("rank ", rank, " of 2 was stopped by a signal")))
        << kPhaseNames[phase];
  }
}

class SeededRankFaultsTest : public RankFaultsTest, public ::testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(, SeededRankFaultsTest, ::testing::ValuesIn(FaultSeeds()), kSeedName);

TEST_P(SeededRankFaultsTest, KillsAtRandomMomentsAreReportedAndTheNextGroupGivesTheUndisturbedPicture) {
  const int kills = FaultKills(10, 30);
  const std::vector<std::string> layouts = {"serial", "cfg=2", "ulysses=2"};
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  std::printf("%d kills\n", kills);
  std::map<std::string, std::vector<uint8_t>> undisturbed;
  std::map<std::string, absl::Duration> took;  // processor time of the first rank
  for (const std::string& layout : layouts) {
    absl::StatusOr<std::vector<uint8_t>> picture = MakePicture(layout);
    ASSERT_TRUE(picture.ok()) << picture.status();
    took[layout] = ProcessorTime(group_->pid(0)).value();
    undisturbed[layout] = *std::move(picture);
  }
  int done = 0, named = 0, unnamed = 0, leftovers = 0, wrong = 0;
  while (done < kills) {
    const std::string& layout = layouts[random() % layouts.size()];
    const auto chosen = static_cast<unsigned>(random());
    // The time of the kill is measured in the rank's processor time, so that it does not depend on the machine's load.
    const absl::Duration after = took[layout] * ((random() % 900) / 1000.0);
    std::future<void> killer;
    std::string name;
    const absl::StatusOr<std::vector<uint8_t>> picture = MakePicture(layout, [&](Phase at) {
      if (at != kStarting) return;
      const int ranks = group_->ranks();
      const int rank = static_cast<int>(chosen % static_cast<unsigned>(ranks));
      name = ranks == 1 ? "the worker" : absl::StrCat("rank ", rank, " of ", ranks);
      killer = std::async(std::launch::async, [after, pid = group_->pid(rank)] {
        WaitUntil("its moment", [&] { return ProcessorTime(pid).value_or(after) >= after; });
        if (ProcessorTime(pid).has_value()) kill(pid, SIGKILL);
      });
    });
    if (picture.ok()) group_.reset();
    killer.get();
    if (picture.ok()) {  // the image was done before the kill
      wrong += *picture != undisturbed[layout];
      continue;
    }
    ++done;
    const bool right = absl::StrContains(Text(picture.status()), name) &&
                       absl::StrContains(Text(picture.status()), "was killed by signal 9");
    ++(right ? named : unnamed);
    if (!right) std::printf("unnamed: %s: %s\n", name.c_str(), Text(picture.status()).c_str());
    group_.reset();
    leftovers += CountLeftovers();
    if (done % 5 != 0) continue;
    const absl::StatusOr<std::vector<uint8_t>> next = MakePicture(layout);
    wrong += !next.ok() || *next != undisturbed[layout];
  }
  std::printf("kills %d named %d unnamed %d leftovers %d wrong images %d\n", done, named, unnamed, leftovers, wrong);
  EXPECT_EQ(unnamed, 0);
  EXPECT_EQ(leftovers, 0);
  EXPECT_EQ(wrong, 0);
}

// Kills `tessera generate` itself.
TEST_F(RankFaultsTest, NoWorkerOutlivesAKilledController) {
  std::mt19937 random(7);
  for (int i = 0; i < 5; ++i) {
    // The image takes so long that it is not done when the controller is killed.
    ChildProcess controller(
        {.arguments = {TESSERA_EXECUTABLE, "generate", "red apple", "--layout", "cfg=2", "--certify", "off", "--json",
                       "--steps", "500", "--size", "256x256", "-o", folder_ / "x.png"},
         .folder = folder_.path(),
         .environment = {{"PATH", "/usr/bin:/bin"}, {"XDG_RUNTIME_DIR", folder_.path()}}});
    std::vector<pid_t> workers;
    ASSERT_TRUE(WaitUntil("two workers", [&] {
      workers = ProcessesWith(REAL_WORKER, "XDG_RUNTIME_DIR", folder_.path());
      return workers.size() == 2;
    }));
    if (i % 2 == 1) controller.WaitForOutput("\"step\"");
    if (i == 3) StopProcess(workers[0]);
    controller.Signal(SIGKILL);
    EXPECT_EQ(controller.Wait(), 1000 + SIGKILL);
    for (const pid_t pid : workers) EXPECT_TRUE(WaitUntilGone(pid));
  }
}

TEST_F(RankFaultsTest, SharedMemoryThatIsTooSmallIsReported) {
  ChildProcess limited({.arguments = {TESSERA_EXECUTABLE, "generate", "x", "--ranks", "2", "--certify", "off"},
                        .folder = folder_.path(),
                        .environment = {{"PATH", "/usr/bin:/bin"}, {"XDG_RUNTIME_DIR", folder_.path()}},
                        .largest_file = 4096});
  EXPECT_NE(limited.Wait(), 0);
  EXPECT_THAT(limited.errors(), HasSubstr("shared memory"));
}

TEST_F(RankFaultsTest, MissingDevicesAndLayoutsOfOtherModelsAreReported) {
  const auto errors = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {TESSERA_EXECUTABLE, "generate", "x", "--certify", "off"});
    ChildProcess child(
        {.arguments = more,
         .folder = folder_.path(),
         .environment = {
             {"PATH", "/usr/bin:/bin"}, {"CUDA_VISIBLE_DEVICES", ""}, {"XDG_RUNTIME_DIR", folder_.path()}}});
    EXPECT_THAT(child.Wait(), AnyOf(2, 3, 4, 5, 6));
    return child.errors();
  };
  EXPECT_THAT(errors({"--device", "cuda", "--ranks", "2"}), HasSubstr("cuda"));
  EXPECT_THAT(errors({"--layout", "ulysses=7"}), HasSubstr("ulysses"));
}

TEST_F(RankFaultsTest, AWeightFileThatIsCutShortIsNamed) {
  const std::string model = folder_.path() + "-model";
  std::filesystem::copy(EMBEDDED_MODEL, model, std::filesystem::copy_options::recursive);
  for (const auto& entry : std::filesystem::directory_iterator(model + "/transformer")) {
    if (entry.path().extension() == ".safetensors") std::filesystem::resize_file(entry.path(), entry.file_size() / 2);
  }
  ChildProcess child(
      {.arguments = {TESSERA_EXECUTABLE, "generate", "x", "-m", model, "--ranks", "2", "--certify", "off"},
       .folder = folder_.path(),
       .environment = {{"PATH", "/usr/bin:/bin"}, {"XDG_RUNTIME_DIR", folder_.path()}}});
  EXPECT_NE(child.Wait(), 0);
  EXPECT_THAT(child.errors(), HasSubstr(".safetensors"));
  std::filesystem::remove_all(model);
}

}  // namespace
}  // namespace tessera
