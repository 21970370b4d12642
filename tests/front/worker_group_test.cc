#include "server/workers/worker_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "control/model/model_description.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/load_parameters.h"
#include "control/parameters/loaded.h"
#include "control/protocol/training_commands.h"
#include "tests/support/test_folder.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Provides groups of fake workers and checks that none is left.
class WorkerGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("TESSERA_WORKER", FAKE_WORKER, 1);
    model_.Write("model_index.json", "{}");
  }

  void TearDown() override {
    group_.reset();
    for (pid_t pid : pids_) EXPECT_TRUE(kill(pid, 0) == -1 && errno == ESRCH) << "process " << pid << " is left";
  }

  // Starts and connects a group. LoadAndStep gives it a job of six steps.
  void Start(const std::string& layout, const std::string& script = "", const server::ProgressBounds& bounds = {}) {
    setenv("TESSERA_FAKE_WORKER", script.c_str(), 1);
    absl::StatusOr<std::unique_ptr<server::WorkerGroup>> group = server::WorkerGroup::Start(
        {.layout = *parallel::ParseLayout(layout), .timeout = absl::Seconds(60), .progress = bounds});
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
    for (int rank = 0; rank < group_->ranks(); ++rank) pids_.push_back(group_->pid(rank));
    const absl::Status connected = group_->Connect(absl::Seconds(30));
    ASSERT_TRUE(connected.ok()) << connected;
  }

  absl::Status LoadAndStep(int steps, int32_t side = 16) {
    if (absl::StatusOr<control::Loaded> loaded = group_->Load({.model = model_.path()}); !loaded.ok())
      return loaded.status();
    absl::StatusOr<control::JobStarted> started =
        group_->StartJob(1, {.prompt = "x", .height = side, .width = side == 16 ? 24 : side, .steps = 6});
    if (!started.ok()) return started.status();
    started_ = *started;
    for (int i = 0; i < steps; ++i) {
      if (absl::Status stepped = Step(); !stepped.ok()) return stepped;
    }
    return absl::OkStatus();
  }

  absl::Status Step() {
    absl::StatusOr<uint64_t> sequence = group_->SendStep({1});
    if (!sequence.ok()) return sequence.status();
    return group_->WaitForStep(*sequence).status();
  }

  TestFolder model_;
  std::unique_ptr<server::WorkerGroup> group_;
  control::JobStarted started_;
  std::vector<pid_t> pids_;
};

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST_F(WorkerGroupTest, SaysWhatRanksWouldComputeWith) {
  Start("serial", "identity=a,b,c,d,e");
  const control::DeviceIdentity one = {.device = "a", .driver = "b", .cudnn = "c", .nccl = "d", .communicator = "e"};
  EXPECT_EQ(*group_->Identify("cuda", 2), one);
  EXPECT_EQ(*group_->Identify("cuda:0,cuda:1", 2), one);
  control::DeviceIdentity mixed = {.device = "; a", .driver = "; b", .cudnn = "; c", .nccl = "; d"};
  mixed.communicator = "host; e";
  EXPECT_EQ(*group_->Identify("cpu,cuda:1", 2), mixed);
}

TEST_F(WorkerGroupTest, NcclJoinsRanksWithACardEachAndNoOthers) {
  Start("serial", "identity=a,b,c,d,nccl");
  EXPECT_EQ(group_->Identify("cuda:0,cuda:1", 2)->communicator, "nccl");
  EXPECT_EQ(group_->Identify("cuda:1,cuda:1", 2)->communicator, "host");
  EXPECT_EQ(group_->Identify("cuda:1", 1)->communicator, "host");
}

TEST_F(WorkerGroupTest, MakesAPictureOnEveryNumberOfRanks) {
  std::vector<uint8_t> first;
  for (const char* layout : {"serial", "cfg=2", "ring=3"}) {
    Start(layout);
    ASSERT_EQ(LoadAndStep(6), absl::OkStatus());
    const absl::StatusOr<control::DecodedPicture> picture = group_->Decode(1, started_);
    ASSERT_TRUE(picture.ok()) << picture.status();
    ASSERT_EQ(picture->image.bytes.size(), size_t{16 * 24 * 3});
    EXPECT_EQ(picture->completed, 6);
    if (first.empty()) first = picture->image.bytes;
    EXPECT_EQ(picture->image.bytes, first) << layout;
    EXPECT_EQ(group_->EndJob(1), absl::OkStatus());
    EXPECT_EQ(group_->Shutdown(), absl::OkStatus());
  }
}

TEST_F(WorkerGroupTest, WeightsAndMemoryAreThoseOfAllRanks) {
  Start("cfg=2,ulysses=2");
  const absl::StatusOr<control::Loaded> loaded = group_->Load({.model = model_.path()});
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded->weight_bytes, 4u * 48);
  EXPECT_GT(group_->PeakMemoryBytes(), 4u << 20);
}

TEST_F(WorkerGroupTest, AKilledRankEndsTheGroupWithItsNumber) {
  for (int rank = 0; rank < 3; ++rank) {
    Start("ring=3");
    ASSERT_EQ(LoadAndStep(2), absl::OkStatus());
    kill(group_->pid(rank), SIGKILL);
    const absl::Status status = Step();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(Text(status), HasSubstr(absl::StrCat("rank ", rank, " of 3 was killed by signal 9 (Killed)")));
    EXPECT_EQ(group_->EndJob(1), status) << "the first reason stays";
  }
}

TEST_F(WorkerGroupTest, ARankThatDiesWithinACommandIsNamedWithItsLastWords) {
  for (const char* call : {"load", "start", "step1", "step3", "decode"}) {
    Start("cfg=2", absl::StrCat("rank1:", call, "=die"));
    absl::Status status = LoadAndStep(4);
    if (status.ok()) status = group_->Decode(1, started_).status();
    EXPECT_THAT(Text(status), AllOf(HasSubstr("rank 1 of 2 was killed by signal 9 (Killed)"),
                                    HasSubstr(absl::StrCat("fake worker: die in ", call))))
        << call;
  }
}

TEST_F(WorkerGroupTest, ARankThatEndsBeforeItListensIsNamed) {
  setenv("TESSERA_FAKE_WORKER", "rank1:exit=5", 1);
  absl::StatusOr<std::unique_ptr<server::WorkerGroup>> group =
      server::WorkerGroup::Start({.layout = *parallel::ParseLayout("cfg=2")});
  ASSERT_TRUE(group.ok());
  EXPECT_THAT(Text((*group)->Connect(absl::Seconds(30))),
              AllOf(HasSubstr("rank 1 of 2"), HasSubstr("ended with exit code 5")));
}

TEST_F(WorkerGroupTest, AStoppedRankIsNamed) {
  Start("cfg=2");
  ASSERT_EQ(LoadAndStep(2), absl::OkStatus());
  kill(group_->pid(1), SIGSTOP);
  EXPECT_THAT(Text(Step()), HasSubstr("rank 1 of 2 was stopped by a signal"));
}

TEST_F(WorkerGroupTest, AnAnswerThatNeverComesEndsTheGroup) {
  // Only the bound of the call is short: until then the ranks may take their time.
  constexpr absl::Duration kSoon = absl::Milliseconds(300), kLate = absl::Seconds(60);
  const server::ProgressBounds loading = {.loading = kSoon, .other = kLate, .step = kLate},
                               other = {.loading = kLate, .other = kSoon, .step = kLate},
                               step = {.loading = kLate, .other = kLate, .step = absl::Seconds(3)};
  for (const auto& [call, bounds] : {std::pair("load", loading), {"start", other}, {"step1", other}, {"step3", step}}) {
    Start("cfg=2", absl::StrCat("rank1:", call, "=hang"), bounds);
    const absl::Status status = LoadAndStep(4);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(Text(status), HasSubstr("rank 1 of 2 hangs")) << call;
  }
}

TEST_F(WorkerGroupTest, StepsThatTakeLongerThanAnyPauseMayAreWaitedFor) {
  Start("cfg=2", "step-time=3500",
        {.loading = absl::Seconds(60), .other = absl::Seconds(60), .step = absl::Seconds(3)});
  ASSERT_EQ(LoadAndStep(1), absl::OkStatus());
  // Two steps are in flight at any time, so a reply is always pending.
  absl::StatusOr<uint64_t> due = group_->SendStep({1});
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<uint64_t> next = group_->SendStep({1});
    ASSERT_TRUE(due.ok() && next.ok());
    const absl::StatusOr<control::Stepped> stepped = group_->WaitForStep(*due);
    ASSERT_TRUE(stepped.ok()) << stepped.status();
    EXPECT_GE(stepped->seconds, 3.5);
    due = next;
  }
  EXPECT_TRUE(group_->WaitForStep(*due).ok());
}

constexpr absl::Duration kShort = absl::Seconds(3);
constexpr server::ProgressBounds kShortBounds = {.loading = absl::Seconds(60), .other = kShort, .step = kShort};

// During a step that is predicted to be long, the processor time of a long operator counts as progress, from the first
// step on. For the fake worker's model the prediction for the largest size on the slowest machine is a minute.
TEST_F(WorkerGroupTest, AStepThatIsOneLongOperatorIsNoHang) {
  Start("cfg=2", "step-time=4000 silent", kShortBounds);
  ASSERT_TRUE(group_->Describe(model_.path()).ok());
  ASSERT_EQ(LoadAndStep(2, /*side=*/2048), absl::OkStatus());
}

TEST_F(WorkerGroupTest, ARankThatDoesNothingInALongStepIsFoundAtTheBound) {
  for (const char* script : {"rank1:step1=hang", "rank1:step2=hang"}) {
    Start("cfg=2", script, kShortBounds);
    ASSERT_TRUE(group_->Describe(model_.path()).ok());
    EXPECT_THAT(Text(LoadAndStep(2, /*side=*/2048)), HasSubstr("rank 1 of 2 hangs: no rank has made progress for"));
  }
}

TEST_F(WorkerGroupTest, ARankThatSpinsIsFoundOnceNoStepTakesSoLong) {
  for (const char* script : {"rank1:step1=spin", "rank1:step2=spin"}) {
    Start("cfg=2", script, kShortBounds);
    ASSERT_TRUE(group_->Describe(model_.path()).ok());
    EXPECT_THAT(Text(LoadAndStep(2)), HasSubstr("rank 1 of 2 hangs: no rank has made progress for")) << script;
  }
}

// Simulates a rank whose peer is gone, although its step may take long.
TEST_F(WorkerGroupTest, ARankThatWaitsBusilyForAnotherDoesNotWork) {
  Start("cfg=2", "rank0:step1=spin-in-call rank1:step1=hang", kShortBounds);
  ASSERT_TRUE(group_->Describe(model_.path()).ok());
  EXPECT_THAT(Text(LoadAndStep(1, /*side=*/2048)), HasSubstr("rank 1 of 2 hangs: no rank has made progress for"));
}

TEST_F(WorkerGroupTest, RanksWithDifferentLatentsAreCaught) {
  Start("cfg=2", "rank1:drift=3");
  ASSERT_EQ(LoadAndStep(2), absl::OkStatus());
  const absl::Status status = Step();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Text(status), HasSubstr("after step 3 the latents of rank 1 of 2 differ from those of rank 0"));
  EXPECT_EQ(Step(), status);
}

TEST_F(WorkerGroupTest, WhatOneRankAloneCannotDoEndsTheGroup) {
  Start("cfg=2", "rank1:load=error");
  const absl::Status status = LoadAndStep(0);
  EXPECT_THAT(Text(status), HasSubstr("rank 1 of 2: load fails as its script says"));
  EXPECT_EQ(group_->Load({.model = model_.path()}).status(), status);
}

TEST_F(WorkerGroupTest, WhatNoRankCanDoLeavesTheGroupAsItWas) {
  Start("cfg=2", "step3=error");
  ASSERT_EQ(LoadAndStep(2), absl::OkStatus());
  EXPECT_EQ(Text(Step()), "step3 fails as its script says");
  EXPECT_TRUE(group_->Decode(1, started_).ok());
}

}  // namespace
}  // namespace tessera
