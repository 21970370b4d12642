// The step loop over workers that only write down what they are asked. Compiled once more with a planted bug.
#include "server/workers/step_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/planted_bug.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

// Jobs of few steps; a decode says after how many.
class FakeWorkers final : public StepWorkers {
 public:
  absl::StatusOr<JobStarted> StartJob(uint64_t job, const JobParameters&) override {
    Note("start ", job);
    if (failing_start == job) return absl::InvalidArgumentError("refused");
    return JobStarted();
  }
  absl::StatusOr<uint64_t> SendStep(absl::Span<const uint64_t> jobs) override {
    Note("send ", absl::StrJoin(jobs, "+"));
    for (const uint64_t job : jobs) ++steps_[job];
    completed_[++sequence_] = steps_[jobs[0]];
    return sequence_;
  }
  absl::StatusOr<Stepped> WaitForStep(uint64_t sequence) override {
    Note("wait ", sequence);
    if (failing_step == sequence) return step_error;
    return Stepped{.completed = completed_[sequence] + extra_steps, .seconds = 1};
  }
  absl::StatusOr<DecodedPicture> Decode(uint64_t job, const JobStarted&) override {
    Note("decode ", absl::StrCat(job, " after ", steps_[job]));
    return DecodedPicture();
  }
  absl::Status EndJob(uint64_t job) override {
    Note("end ", job);
    return absl::OkStatus();
  }
  absl::Status health() override { return absl::OkStatus(); }

  std::vector<std::string> asked;
  uint64_t failing_start = 0, failing_step = 0;
  absl::Status step_error = absl::InternalError("a step failed");
  int32_t extra_steps = 0;

 private:
  template <typename What>
  void Note(const char* verb, const What& what) {
    asked.push_back(absl::StrCat(verb, what));
  }
  std::map<uint64_t, int32_t> steps_, completed_;
  uint64_t sequence_ = 0;
};

// Plans what it is given, and writes down what it hears.
class FakeOwner final : public StepOwner {
 public:
  StepPlan Next(GroupId) override {
    if (plans.empty()) return {};
    StepPlan plan = plans.front();
    plans.pop_front();
    return plan;
  }
  void WaitForWork(GroupId, absl::Duration) override { heard.push_back("idle"); }
  absl::StatusOr<RunnableTask> Claim(GroupId, TaskId) override {
    RunnableTask claimed;
    claimed.preview_after = preview_after;
    return claimed;
  }
  void OnStarted(GroupId, TaskId task, const JobStarted&) override { heard.push_back(absl::StrCat("started ", task)); }
  void OnBatchDiffers(GroupId, const std::vector<TaskId>&) override { heard.push_back("differs"); }
  void OnStepped(GroupId, const std::vector<TaskId>& tasks, double) override {
    heard.push_back(absl::StrCat("stepped ", absl::StrJoin(tasks, "+")));
  }
  void OnPreview(GroupId, TaskId task, const Image&) override { heard.push_back(absl::StrCat("preview ", task)); }
  void OnDecoded(GroupId, TaskId task, Image, const JobStarted&, double) override {
    heard.push_back(absl::StrCat("decoded ", task));
  }
  void OnFailed(GroupId, TaskId task, const absl::Status&) override { heard.push_back(absl::StrCat("failed ", task)); }
  void OnBatchFailed(GroupId, const std::vector<TaskId>& tasks, const absl::Status&) override {
    heard.push_back(absl::StrCat("failed ", absl::StrJoin(tasks, "+")));
  }
  void OnEnded(GroupId, TaskId task) override { heard.push_back(absl::StrCat("ended ", task)); }

  std::deque<StepPlan> plans;
  std::vector<int32_t> preview_after;
  std::vector<std::string> heard;
};

class NoProof final : public BatchProof {
 public:
  bool IsProven(const JobStarted&, size_t) const override { return false; }
  absl::StatusOr<bool> Prove(const std::vector<TaskId>&, const JobStarted&) override { return false; }
};

struct Loop {
  // Until nothing is left to do.
  absl::Status Run(std::deque<StepPlan> plans) {
    owner.plans = std::move(plans);
    while (owner.heard.empty() || owner.heard.back() != "idle") {
      if (absl::Status turned = loop.Turn(); !turned.ok()) return turned;
    }
    return absl::OkStatus();
  }

  FakeWorkers workers;
  FakeOwner owner;
  GroupTrace trace{nullptr, "", 1};
  StepLoop loop{workers, owner, trace, {}};
};

bool APreviewIsOfItsOwnStep() {
  Loop loop;
  loop.owner.preview_after = {1};
  EXPECT_TRUE(loop.Run({{.start = {1}}, {.step = {1}}, {.step = {1}}, {.step = {1}, .decode = {1}}}).ok());
  const auto preview =
      std::ranges::find_if(loop.workers.asked, [](const std::string& asked) { return asked.starts_with("decode"); });
  return *preview == "decode 1 after 1";
}

TEST(StepLoopTest, APreviewIsOfItsOwnStep) { EXPECT_TRUE(APreviewIsOfItsOwnStep()); }

TEST(StepLoopTest, KeepsTwoStepsUnansweredAndDecodesBehindTheLast) {
  Loop loop;
  ASSERT_TRUE(loop.Run({{.start = {1}}, {.step = {1}}, {.step = {1}}, {.step = {1}, .decode = {1}}}).ok());
  EXPECT_THAT(loop.workers.asked, ElementsAre("start 1", "send 1", "send 1", "wait 1", "send 1", "wait 2", "wait 3",
                                              "decode 1 after 3", "end 1"));
  EXPECT_THAT(loop.owner.heard,
              ElementsAre("started 1", "stepped 1", "stepped 1", "stepped 1", "decoded 1", "ended 1", "idle"));
}

TEST(StepLoopTest, AJobThatIsRefusedFailsAlone) {
  Loop loop;
  loop.workers.failing_start = 1;
  ASSERT_TRUE(loop.Run({{.start = {1, 2}}, {.step = {1, 2}, .decode = {2}}}).ok());
  EXPECT_THAT(loop.owner.heard,
              ElementsAre("failed 1", "ended 1", "started 2", "stepped 2", "decoded 2", "ended 2", "idle"));
}

TEST(StepLoopTest, AStepOfSeveralThatFailsEndsAllOfThem) {
  Loop loop;
  loop.workers.failing_step = 1;
  ASSERT_TRUE(loop.Run({{.start = {1, 2}}, {.step = {1, 2}}}).ok());
  EXPECT_THAT(loop.owner.heard,
              ElementsAre("started 1", "started 2", "stepped ", "failed 1+2", "ended 1", "ended 2", "idle"));
}

TEST(StepLoopTest, AWorkerThatIsGoneEndsTheLoop) {
  Loop loop;
  loop.workers.failing_step = 1;
  loop.workers.step_error = absl::UnavailableError("the worker is gone");
  EXPECT_EQ(loop.Run({{.start = {1}}, {.step = {1}}}), loop.workers.step_error);
  EXPECT_THAT(loop.owner.heard, ElementsAre("started 1"));
}

TEST(StepLoopTest, AWorkerThatCountsOtherStepsIsOfNoMoreUse) {
  Loop loop;
  loop.workers.extra_steps = 1;
  EXPECT_EQ(loop.Run({{.start = {1}}, {.step = {1}}}).message(), "the worker reports step 2 after step 0");
}

TEST(StepLoopTest, ImagesThatChangeEachOtherAreSteppedOneByOne) {
  FakeWorkers workers;
  FakeOwner owner;
  GroupTrace trace(nullptr, "", 1);
  NoProof proof;
  StepLoop loop(workers, owner, trace, {.proof = &proof});
  owner.plans = {{.start = {1, 2}}, {.step = {1, 2}, .decode = {1, 2}}};
  ASSERT_TRUE(loop.Turn().ok());
  ASSERT_TRUE(loop.Turn().ok());
  EXPECT_THAT(workers.asked, ElementsAre("start 1", "start 2", "send 1", "wait 1", "send 2", "wait 2",
                                         "decode 1 after 1", "end 1", "decode 2 after 1", "end 2"));
  EXPECT_THAT(owner.heard, ElementsAre("started 1", "started 2", "differs", "stepped 1+2", "decoded 1", "ended 1",
                                       "decoded 2", "ended 2"));
}

#ifdef TESSERA_PLANTED_BUGS
TEST(PlantedStepLoopBugTest, APreviewAfterALaterStepIsFound) {
  ASSERT_TRUE(APreviewIsOfItsOwnStep());
  const PlantedBug planted("preview_after_a_later_step");
  EXPECT_FALSE(APreviewIsOfItsOwnStep());
}
#endif

}  // namespace
}  // namespace tessera
