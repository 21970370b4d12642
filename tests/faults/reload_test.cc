// Tests how a server handles SIGHUP, other signals, and changes of its configuration file.
#include <gmock/gmock.h>
#include <signal.h>

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ReloadTest : public ::testing::TestWithParam<bool> {
 protected:
  void Start(const std::string& settings = "") {
    server_ = std::make_unique<TestServer>(
        TestServerOptions{.worker = FAKE_WORKER, .groups = {"{model: TINY, layout: serial}"}, .settings = settings});
    server_->options().script = absl::StrCat("gate=", server_->folder(), "/gate");
    if (!GetParam()) server_->options().arguments = {"--no-supervisor"};
    ASSERT_TRUE(server_->Start());
    server_->WaitUntilReady();
  }

  std::string Config() const {
    std::ifstream file(server_->folder() + "/tessera.yaml");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  void Replace(const std::string& what, const std::string& with) {
    const std::string before = Config();
    ASSERT_THAT(before, HasSubstr(what));
    server_->Write("tessera.yaml", absl::StrReplaceAll(before, {{what, with}}));
  }

  // Sends SIGHUP and returns the log from then on, up to the line with the result.
  std::string HangUp() {
    const size_t before = server_->process().errors().size();
    server_->process().Signal(SIGHUP);
    std::string lines;
    WaitUntil("an answer to SIGHUP", [&] {
      lines = server_->process().errors().substr(before);
      return absl::StrContains(lines, "SIGHUP:");
    });
    return lines;
  }

  void Crash() {
    ASSERT_NO_FATAL_FAILURE(server_->CrashServingProcess(SIGABRT));
    server_->WaitUntilReady();
  }

  int StatusOf(const std::string& more) {
    return server_->Call("POST", "/v1/jobs", absl::StrCat(R"({"prompt": "x", "size": "64x64")", more, "}")).status;
  }

  std::unique_ptr<TestServer> server_;
};

INSTANTIATE_TEST_SUITE_P(Processes, ReloadTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Supervised" : "Alone"; });

TEST_P(ReloadTest, TakesNewLimitsAndNamesWhatHasToWait) {
  ASSERT_NO_FATAL_FAILURE(Start("limits: {steps_per_image: 20}\n"));
  EXPECT_EQ(StatusOf(R"(, "num_inference_steps": 21)"), 400);
  ASSERT_NO_FATAL_FAILURE(Replace("steps_per_image: 20", "steps_per_image: 30, connections: 77"));
  EXPECT_THAT(HangUp(), AllOf(HasSubstr("limits.steps_per_image: 20 -> 30"),
                              HasSubstr("takes effect at the next start: limits.connections")));
  EXPECT_EQ(StatusOf(R"(, "num_inference_steps": 21)"), 202);
  EXPECT_EQ(StatusOf(R"(, "num_inference_steps": 31)"), 400);
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_P(ReloadTest, GoesOnAsItWasWhereTheFileIsWrongOrGone) {
  ASSERT_NO_FATAL_FAILURE(Start("limits: {steps_per_image: 20}\n"));
  ASSERT_NO_FATAL_FAILURE(Replace("steps_per_image", "steps_per_imag"));
  EXPECT_THAT(HangUp(), AllOf(HasSubstr("was not reloaded"), HasSubstr("did you mean 'steps_per_image'")));
  server_->Write("tessera.yaml", "");
  EXPECT_THAT(HangUp(), HasSubstr("was not reloaded"));
  ASSERT_EQ(unlink((server_->folder() + "/tessera.yaml").c_str()), 0);
  EXPECT_THAT(HangUp(), AllOf(HasSubstr("was not reloaded"), HasSubstr("cannot be opened")));
  EXPECT_EQ(StatusOf(R"(, "num_inference_steps": 20)"), 202);
  EXPECT_EQ(StatusOf(R"(, "num_inference_steps": 21)"), 400);
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_P(ReloadTest, ANameOfTwoModelsIsRefusedAndBothAreNamed) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::string config = Config();
  server_->Write("elsewhere/tiny/model_index.json", "{}");
  const std::string elsewhere = server_->folder() + "/elsewhere/tiny";
  server_->Write("tessera.yaml", absl::StrCat(config, "  - {model: ", elsewhere, ", layout: serial}\n"));
  EXPECT_THAT(HangUp(), AllOf(HasSubstr("was not reloaded"), HasSubstr("/models/tiny"), HasSubstr(elsewhere)));
  server_->Write("tessera.yaml", absl::StrCat(config, "  - {model: TINY, layout: serial, dtype: bf16}\n"));
  ASSERT_NO_FATAL_FAILURE(Replace("TINY", server_->folder() + "/models/tiny"));
  EXPECT_THAT(HangUp(), AllOf(HasSubstr("was not reloaded"), HasSubstr("in bf16")));
  EXPECT_EQ(server_->Ended(server_->Submit("apple")), "done");
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_P(ReloadTest, TakesAKeysFileAndGivesItUp) {
  ASSERT_NO_FATAL_FAILURE(Start("heartbeat: 9s\n"));
  server_->Write("keys.txt", "me sha256:zz");
  ASSERT_NO_FATAL_FAILURE(Replace("heartbeat: 9s", absl::StrCat("keys_file: ", server_->folder(), "/keys.txt")));
  EXPECT_THAT(HangUp(), AllOf(HasSubstr("was not reloaded"), HasSubstr("line 1 of the keys")));
  EXPECT_EQ(StatusOf(""), 202);
  server_->Write("keys.txt", "# nobody");
  EXPECT_THAT(HangUp(), AllOf(HasSubstr("keys_file"), HasSubstr("API keys")));
  EXPECT_EQ(StatusOf(""), 401);
  ASSERT_NO_FATAL_FAILURE(Replace("keys_file:", "# keys_file:"));
  EXPECT_THAT(HangUp(), HasSubstr("keys_file"));
  EXPECT_EQ(StatusOf(""), 202);
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_P(ReloadTest, SignalsWithoutAMeaningDoNothing) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (const int number : {SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGPOLL, SIGPIPE, SIGRTMIN, SIGRTMAX}) {
    server_->process().Signal(number);
  }
  HangUp();  // arrives after the other signals
  EXPECT_EQ(server_->Ended(server_->Submit("apple")), "done");
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_P(ReloadTest, GroupsComeAndGoAndTheSameOnesStay) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<pid_t> before = server_->Workers();
  const std::string config = Config();
  server_->Write("tessera.yaml", absl::StrCat(config, "  - {model: ", server_->folder(),
                                              "/models/other, layout: serial, aliases: [o]}\n"));
  EXPECT_THAT(HangUp(), HasSubstr("groups"));
  WaitUntil("the new group", [&] { return StatusOf(R"(, "model": "o")") == 202; });
  server_->WaitUntilReady();
  EXPECT_EQ(server_->Ended(server_->Submit("apple", R"(, "model": "o")")), "done");
  EXPECT_THAT(server_->Workers(), ::testing::IsSupersetOf(before));
  server_->Write("tessera.yaml", config);
  EXPECT_THAT(HangUp(), HasSubstr("groups"));
  WaitUntil("the end of the group", [&] { return server_->Workers() == before; });
  EXPECT_EQ(StatusOf(R"(, "model": "o")"), 404);
  EXPECT_EQ(server_->Group().at("restarts").to_number<int>(), 0);
  EXPECT_EQ(server_->Ended(server_->Submit("pear")), "done");
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_P(ReloadTest, AGroupThatGoesFinishesWhatItHasAndWhatWaitsForItFails) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::string config = Config();
  server_->Write("tessera.yaml",
                 absl::StrCat(config, "  - {model: ", server_->folder(), "/models/other, layout: serial}\n"));
  HangUp();
  WaitUntil("the new group", [&] { return StatusOf(R"(, "model": "other")") == 202; });
  // The two jobs have different sizes, so the second waits for the first.
  const std::string runs = server_->Submit("gated apple", R"(, "model": "other", "num_inference_steps": 200)");
  WaitUntil("running", [&] { return server_->StatusOf(runs) == "running"; });
  const TestResponse waiting = server_->Call(
      "POST", "/v1/jobs", R"({"prompt": "x", "size": "32x32", "model": "other", "num_inference_steps": 900})");
  ASSERT_EQ(waiting.status, 202) << waiting.body;
  const std::string waits(boost::json::parse(waiting.body).at("id").as_string());
  server_->Write("tessera.yaml", config);
  HangUp();
  server_->Write("gate", "");
  EXPECT_EQ(server_->Ended(waits), "failed");
  EXPECT_THAT(boost::json::serialize(server_->Get(waits)), HasSubstr("no longer served"));
  EXPECT_EQ(server_->Ended(runs), "done");
  WaitUntil("the end of the group", [&] { return server_->Workers().size() == 1; });
  EXPECT_EQ(server_->Terminate(), 0);
}

using SupervisedReloadTest = ReloadTest;
INSTANTIATE_TEST_SUITE_P(Processes, SupervisedReloadTest, ::testing::Values(true));

TEST_P(SupervisedReloadTest, ACrashKeepsTheConfigurationWhateverBecameOfItsFile) {
  ASSERT_NO_FATAL_FAILURE(Start("limits: {steps_per_image: 20}\n"));
  server_->Write("tessera.yaml", "groups: [{mod");
  ASSERT_NO_FATAL_FAILURE(Crash());
  EXPECT_EQ(StatusOf(R"(, "num_inference_steps": 20)"), 202);
  EXPECT_EQ(StatusOf(R"(, "num_inference_steps": 21)"), 400);
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_P(SupervisedReloadTest, ACrashKeepsWhatWasReadAgain) {
  ASSERT_NO_FATAL_FAILURE(Start("limits: {steps_per_image: 20}\n"));
  ASSERT_NO_FATAL_FAILURE(Replace("steps_per_image: 20", "steps_per_image: 30"));
  HangUp();
  server_->Write("tessera.yaml", "half an edit");
  ASSERT_NO_FATAL_FAILURE(Crash());
  EXPECT_EQ(StatusOf(R"(, "num_inference_steps": 30)"), 202);
  EXPECT_EQ(StatusOf(R"(, "num_inference_steps": 31)"), 400);
  EXPECT_THAT(HangUp(), HasSubstr("was not reloaded"));
  EXPECT_EQ(server_->Terminate(), 0);
}

}  // namespace
}  // namespace tessera
