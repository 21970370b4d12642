// Tests a group session with fake workers: how it opens, what ends it, and that another one can follow.
#include "server/serving/group_session.h"

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "control/parameters/job_parameters.h"
#include "server/workers/step_loop.h"
#include "tests/front/fake_worker_test.h"
#include "tests/support/scripted_step_loop.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GroupSessionTest : public FakeWorkerTest {
 protected:
  GroupSessionTest() {
    options_.model.size_multiple = 8;
    options_.model.min_size = options_.model.default_height = options_.model.default_width = 16;
    options_.model.max_size = 64;
    options_.model.max_steps = 100;
    options_.load.model = model_;
    options_.certificates = folder_ / "certificates";
    owner_.parameters = {.prompt = "x", .height = 16, .width = 16, .steps = 4, .guidance_scale = 1, .sampler = "ddim"};
  }

  void TearDown() override {
    session_.Close();
    FakeWorkerTest::TearDown();
  }

  // Executes the plans until nothing is left to do or the workers cannot be used any more.
  absl::Status Run(std::deque<server::StepPlan> plans) {
    server::StepLoop loop(session_.workers(), owner_, trace_, {});
    owner_.plans = std::move(plans);
    owner_.heard.clear();
    absl::Status status;
    while (status.ok() && (owner_.heard.empty() || owner_.heard.back() != "idle")) status = loop.Turn();
    return status;
  }

  server::GroupRunnerOptions options_ = {.id = 1, .name = "tiny-0", .model_name = "tiny"};
  std::vector<server::GroupState> states_;
  std::vector<std::string> log_lines_;
  const base::EventLog log_ = [this](const base::LogLine& line) { log_lines_.push_back(line.text); };
  server::GroupTrace trace_{nullptr, "tiny-0", 1};
  server::GroupSession session_{options_, log_, trace_,
                                [this](server::GroupState state, const std::string&) { states_.push_back(state); }};
  FakeStepOwner owner_;
};

TEST_F(GroupSessionTest, MakesImagesOnceItIsOpenAndLeavesNothingWhenItIsClosed) {
  EXPECT_FALSE(session_.is_alive());
  ASSERT_EQ(session_.Open(), absl::OkStatus());
  EXPECT_TRUE(session_.is_alive());
  EXPECT_THAT(states_, ElementsAre(server::GroupState::kLoading));
  EXPECT_TRUE(session_.certification().certified) << "one rank needs no certificate";
  EXPECT_EQ(Run({{.start = {1}}, {.step = {1}, .decode = {1}}}), absl::OkStatus());
  EXPECT_THAT(owner_.heard, ElementsAre("started 1", "stepped 1", "decoded 1", "ended 1", "idle"));
  session_.Close();
  EXPECT_FALSE(session_.is_alive());
  EXPECT_THAT(Workers(), IsEmpty());
}

TEST_F(GroupSessionTest, SaysWhyADeviceThatNeverWorksDoesNotHoweverOftenItIsTried) {
  Order("no-device");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(session_.Open(), absl::ResourceExhaustedError("device 'cpu' is not available")) << i;
    session_.Close();
    EXPECT_FALSE(session_.is_alive());
  }
}

TEST_F(GroupSessionTest, DoesNotOpenWithWorkersThatCannotMakeAStep) {
  Order("step1=error");
  EXPECT_THAT(std::string(session_.Open().message()), HasSubstr("its first picture failed: "));
}

TEST_F(GroupSessionTest, DoesNotOpenWithWorkersThatCannotDecodeAPicture) {
  Order("decode-probe=error");
  EXPECT_THAT(std::string(session_.Open().message()), HasSubstr("its first picture failed: "));
}

TEST_F(GroupSessionTest, IsDeadWhenAWorkerDiesInTheMiddleOfAStepAndCanBeOpenedAgain) {
  Order("step2-of-x=die");
  ASSERT_EQ(session_.Open(), absl::OkStatus());
  const absl::Status died = Run({{.start = {1}}, {.step = {1}}, {.step = {1}}, {.step = {1}}});
  EXPECT_EQ(died.code(), absl::StatusCode::kUnavailable) << died;
  EXPECT_THAT(std::string(died.message()), HasSubstr("fake worker: die in step2"));
  EXPECT_FALSE(session_.is_alive());
  EXPECT_THAT(owner_.heard, ::testing::Not(Contains("ended 1"))) << "what becomes of it is not the session's business";
  session_.Close();
  Order("");
  ASSERT_EQ(session_.Open(), absl::OkStatus());
  EXPECT_EQ(Run({{.start = {1}}, {.step = {1}, .decode = {1}}}), absl::OkStatus());
  EXPECT_THAT(owner_.heard, Contains("decoded 1"));
}

TEST_F(GroupSessionTest, OutlivesACancelDuringAStep) {
  const std::string gate = folder_ / "gate";
  Order(absl::StrCat("gate=", gate));
  owner_.parameters.prompt = "gated";
  owner_.on_plan = [&](const server::StepPlan& plan) {
    if (!plan.end.empty()) folder_.Write("gate", "");  // the step is in flight until now
  };
  ASSERT_EQ(session_.Open(), absl::OkStatus());
  ASSERT_EQ(Run({{.start = {1, 2}}, {.step = {1, 2}}, {.end = {1}, .step = {2}, .decode = {2}}}), absl::OkStatus());
  EXPECT_THAT(owner_.heard, ::testing::Not(Contains("decoded 1")));
  EXPECT_THAT(owner_.heard, ::testing::IsSupersetOf({"ended 1", "stepped 1+2", "stepped 2", "decoded 2", "ended 2"}));
  EXPECT_TRUE(session_.is_alive());
}

TEST_F(GroupSessionTest, EndsDuringAStepWithTheReasonThatItIsGiven) {
  Order(absl::StrCat("gate=", folder_ / "never"));
  ASSERT_EQ(session_.Open(), absl::OkStatus());
  control::JobParameters job = owner_.parameters;
  job.prompt = "gated";
  ASSERT_TRUE(session_.workers().StartJob(1, job).ok());
  const absl::StatusOr<uint64_t> sent = session_.workers().SendStep({1});
  ASSERT_TRUE(sent.ok()) << sent.status();
  std::future<absl::Status> step =
      std::async(std::launch::async, [&] { return session_.workers().WaitForStep(*sent).status(); });
  EXPECT_TRUE(session_.End("nobody wants it"));
  ASSERT_EQ(step.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_THAT(std::string(step.get().message()), HasSubstr("nobody wants it"));
  EXPECT_FALSE(session_.is_alive());
}

TEST_F(GroupSessionTest, IsNotOpenedOnceItWasKilled) {
  session_.Kill();
  EXPECT_EQ(session_.Open().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(session_.is_alive());
}

TEST_F(GroupSessionTest, MakesTwoStepsOfEverySizeThatItIsToBeWarmFor) {
  options_.warmup = {{.width = 32, .height = 64}, {.width = 64, .height = 64}};
  server::GroupSession session(options_, log_, trace_, [](server::GroupState, const std::string&) {});
  Order(absl::StrCat("sizes=", folder_ / "sizes"));
  ASSERT_EQ(session.Open(), absl::OkStatus());
  std::stringstream sizes;
  sizes << std::ifstream(folder_ / "sizes").rdbuf();
  EXPECT_EQ(sizes.str(), "16x16\n32x64\n32x64\n64x64\n64x64\n")
      << "the first is the probe; graphs are captured in the second step of a size";
  session.Close();
}

TEST_F(GroupSessionTest, DoesNotOpenWhereItCannotBeWarm) {
  options_.warmup = {{.width = 33, .height = 64}};
  server::GroupSession session(options_, log_, trace_, [](server::GroupState, const std::string&) {});
  const absl::Status opened = session.Open();
  EXPECT_EQ(opened.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(opened.message()), HasSubstr("its warm-up at 33x64 failed: width is 33"));
  session.Close();
}

TEST_F(GroupSessionTest, KnowsTheMemoryOfEveryRanksDevice) {
  server::GroupRunnerOptions options = options_;
  options.load.device = "cuda:0,cuda:1";
  options.layout = *parallel::ParseLayout("cfg=2");
  options.certify = server::CertifyPolicy::kOff;
  server::GroupSession session(options, log_, trace_, [](server::GroupState, const std::string&) {});
  EXPECT_THAT(session.DeviceMemories(), IsEmpty());
  Order("rank1:device-memory=9,8,7,6 device-memory=5,4,3,2");
  ASSERT_EQ(session.Open(), absl::OkStatus());
  EXPECT_THAT(session.DeviceMemories(),
              ElementsAre(control::DeviceMemory{.total = 5, .free = 4, .used = 3, .cached = 2},
                          control::DeviceMemory{.total = 9, .free = 8, .used = 7, .cached = 6}));
  session.Close();
  EXPECT_THAT(session.DeviceMemories(), IsEmpty());
}

TEST_F(GroupSessionTest, GoesOnWithOneRankWhenTheRanksOfItsLayoutDiffer) {
  server::GroupRunnerOptions options = options_;
  options.layout = *parallel::ParseLayout("cfg=2");
  options.certify = server::CertifyPolicy::kOff;
  server::GroupSession session(options, log_, trace_, [](server::GroupState, const std::string&) {});
  Order("rank1:drift=1");
  EXPECT_EQ(session.Open().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(session.layout(), parallel::Layout());
  EXPECT_THAT(log_lines_, Contains(HasSubstr("layout cfg=2 is abandoned, one rank continues")));
  session.Close();
  EXPECT_EQ(session.Open(), absl::OkStatus());
  EXPECT_EQ(session.workers().ranks(), 1);
  session.Close();
}

}  // namespace
}  // namespace tessera
