// Tests jobs that would occupy a group for longer than permitted. They are rejected if the server can predict it;
// otherwise they end together with their workers once they are cancelled or too late.
#include <gmock/gmock.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Request(const std::string& more) { return absl::StrCat(R"({"prompt": "x", )", more, "}"); }

class LongJobsTest : public ::testing::Test {
 protected:
  void Start(const std::string& script, const std::string& settings = "") {
    server_ = std::make_unique<TestServer>(
        TestServerOptions{.worker = FAKE_WORKER, .groups = {"{model: TINY, layout: serial}"}, .settings = settings});
    server_->options().script = absl::StrCat(script, " step1-of-stuck=hang faults=", server_->folder(), "/stuck");
    ASSERT_TRUE(server_->Start());
    server_->WaitUntilReady();
  }

  bool IsStuck() const { return std::filesystem::exists(server_->folder() + "/stuck"); }

  // Submits a job whose first step never ends, and waits until a worker executes it.
  std::string Stuck() {
    std::string job = server_->Submit("stuck");
    WaitUntil("stuck", [&] { return IsStuck(); });
    return job;
  }

  // Returns a job that runs for minutes.
  std::string Running(const std::string& prompt) {
    const std::string job = server_->Submit(prompt, R"(, "num_inference_steps": 1000)");
    WaitUntil("running", [&] { return server_->StatusOf(job) == "running"; });
    return job;
  }

  int64_t Restarts() { return server_->Group().at("restarts").to_number<int64_t>(); }

  std::unique_ptr<TestServer> server_;
};

TEST_F(LongJobsTest, OneThatWouldTakeLongerThanAJobMayIsRefusedWithTheNumberOnceTheSpeedIsLearned) {
  ASSERT_NO_FATAL_FAILURE(Start("step-time=100", "limits: {max_job_seconds: 20}\n"));
  const std::string tall = Request(R"("size": "64x64", "num_inference_steps": 1000)");
  const TestResponse early = server_->Call("POST", "/v1/jobs", tall);
  EXPECT_EQ(early.status, 202) << "nothing is known of its speed yet: " << early.body;
  const std::string first(boost::json::parse(early.body).at("id").as_string());
  server_->Call("DELETE", "/v1/jobs/" + first);
  EXPECT_EQ(server_->Ended(first), "cancelled");
  EXPECT_EQ(server_->Ended(server_->Submit("learn", R"(, "num_inference_steps": 4)")), "done");
  const TestResponse refused = server_->Call("POST", "/v1/jobs", tall);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, AllOf(HasSubstr("1000 steps would take at least 1"), HasSubstr("at most 20 s"),
                                  HasSubstr(R"("param":"num_inference_steps")")));
  const TestResponse many = server_->Call("POST", "/v1/images/generations",
                                          Request(R"("size": "64x64", "n": 10, "num_inference_steps": 100)"));
  EXPECT_EQ(many.status, 400) << many.body;
  EXPECT_THAT(many.body, HasSubstr(R"("param":"n")"));
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_F(LongJobsTest, AGroupThatWorksForACancelledJobIsReplacedAndFree) {
  ASSERT_NO_FATAL_FAILURE(Start(""));
  const std::vector<pid_t> before = server_->Workers();
  const std::string stuck = Stuck();
  EXPECT_EQ(server_->Call("DELETE", "/v1/jobs/" + stuck).status, 200);
  // Only a new worker can make this image.
  EXPECT_EQ(server_->Ended(server_->Submit("pear")), "done");
  EXPECT_EQ(server_->StatusOf(stuck), "cancelled");
  EXPECT_EQ(Restarts(), 1);
  EXPECT_NE(server_->Workers(), before);
  server_->WaitUntilLogged("all its images were cancelled or are late");
  EXPECT_THAT(server_->process().errors(), Not(HasSubstr("quarant")));
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_F(LongJobsTest, AJobWhoseDeadlinePassesInAStepFailsThenAndItsGroupIsReplaced) {
  ASSERT_NO_FATAL_FAILURE(Start(""));
  // A deadline may pass before a worker has begun the job; then a job with more time is submitted.
  std::string late;
  for (int64_t deadline_ms = 3000; !IsStuck() && !HasFailure(); deadline_ms *= 4) {
    late = server_->Submit("stuck", absl::StrCat(R"(, "deadline_ms": )", deadline_ms));
    WaitUntil("stuck or late", [&] { return IsStuck() || server_->StatusOf(late) == "failed"; });
  }
  EXPECT_EQ(server_->Ended(late), "failed");
  EXPECT_THAT(boost::json::serialize(server_->Get(late)), HasSubstr("deadline of the job passed while it ran"));
  EXPECT_EQ(server_->Ended(server_->Submit("pear")), "done");
  EXPECT_EQ(Restarts(), 1);
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_F(LongJobsTest, AStepThatEndsSoonIsWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(Start("step-time=300"));
  const std::string job = Running("apple");
  EXPECT_EQ(server_->Call("DELETE", "/v1/jobs/" + job).status, 200);
  EXPECT_EQ(server_->Ended(server_->Submit("pear", R"(, "num_inference_steps": 1)")), "done");
  EXPECT_EQ(Restarts(), 0);
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_F(LongJobsTest, ASizeFarBeyondTheModelsOwnCarriesAWarningFromTheBeginning) {
  ASSERT_NO_FATAL_FAILURE(Start("step-time=1"));
  const TestResponse large = server_->Call("POST", "/v1/jobs", Request(R"("size": "512x512")"));
  EXPECT_EQ(large.status, 202) << large.body;
  EXPECT_THAT(large.body, HasSubstr("512x512 is far beyond the 64x64"));
  const TestResponse twice = server_->Call("POST", "/v1/jobs", Request(R"("size": "128x128")"));
  EXPECT_EQ(twice.status, 202) << twice.body;
  EXPECT_THAT(twice.body, Not(HasSubstr("far beyond")));
  EXPECT_EQ(server_->Terminate(), 0);
}

}  // namespace
}  // namespace tessera
