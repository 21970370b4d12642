// Tests groups that cannot start: they take no jobs, report the reason, do not prevent other groups from serving, and
// keep retrying.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RefusedGroupsTest : public ::testing::Test {
 protected:
  // Calls fail while the file "broken" exists.
  void Start(const std::string& script, const std::vector<std::string>& groups) {
    server_ = std::make_unique<TestServer>(
        TestServerOptions{.worker = FAKE_WORKER, .groups = groups, .settings = "drain_time: 100ms\n"});
    server_->Write("broken", "");
    server_->options().script = absl::StrCat(script, " when=", server_->folder(), "/broken");
  }

  void Repair() { ASSERT_EQ(unlink((server_->folder() + "/broken").c_str()), 0); }

  void WaitForState(size_t group, const std::string& state) {
    WaitUntil(state, [&] { return server_->Group(group).at("state").as_string() == state; });
  }

  TestResponse Ask(const std::string& model) {
    return server_->Call("POST", "/v1/jobs",
                         absl::StrCat(R"({"prompt": "x", "size": "64x64", "model": ")", model, R"("})"));
  }

  std::unique_ptr<TestServer> server_;
};

TEST_F(RefusedGroupsTest, OneThatCannotLoadTakesNoJobsAndServesOnceItCan) {
  Start("load=error", {"{model: TINY, layout: serial}"});
  ASSERT_TRUE(server_->Start());
  WaitForState(0, "refused");
  EXPECT_THAT(boost::json::serialize(server_->Group()), HasSubstr("load fails as its script says"));
  const TestResponse refused = Ask("tiny");
  EXPECT_EQ(refused.status, 503) << refused.body;
  EXPECT_THAT(refused.body, HasSubstr("no_group"));
  EXPECT_EQ(server_->Call("GET", "/readyz").status, 503);
  ASSERT_NO_FATAL_FAILURE(Repair());
  server_->WaitUntilReady();
  EXPECT_EQ(server_->Ended(server_->Submit("apple")), "done");
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_F(RefusedGroupsTest, SoDoesOneWithoutItsDevice) {
  Start("no-device", {"{model: TINY, layout: serial}"});
  ASSERT_TRUE(server_->Start());
  WaitForState(0, "refused");
  EXPECT_EQ(Ask("tiny").status, 503);
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_F(RefusedGroupsTest, OneWhoseWorkersDieAtEveryStartIsRefusedToo) {
  Start("load=die", {"{model: TINY, layout: serial}"});
  ASSERT_TRUE(server_->Start());
  WaitForState(0, "refused");
  EXPECT_EQ(Ask("tiny").status, 503);
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_F(RefusedGroupsTest, ABrokenModelKeepsAnotherFromNothing) {
  Start("", {"{model: TINY, layout: serial}", "{model: OTHER, layout: serial, aliases: [o]}"});
  ASSERT_EQ(unlink((server_->folder() + "/models/other/model_index.json").c_str()), 0);
  ASSERT_TRUE(server_->Start());
  WaitForState(0, "ready");
  EXPECT_EQ(server_->Ended(server_->Submit("apple")), "done");
  WaitForState(1, "refused");
  EXPECT_THAT(boost::json::serialize(server_->Group(1)), HasSubstr("other"));
  for (const char* name : {"other", "o"}) {
    const TestResponse refused = Ask(name);
    EXPECT_EQ(refused.status, 503) << refused.body;
    EXPECT_THAT(refused.body, HasSubstr("no_group"));
  }
  EXPECT_EQ(server_->Call("GET", "/v1/models/other").status, 503);
  EXPECT_EQ(server_->Call("GET", "/v1/models").status, 200);
  EXPECT_EQ(server_->Call("GET", "/readyz").status, 503);
  server_->Write("models/other/model_index.json", "{}");
  server_->WaitUntilReady();
  EXPECT_EQ(server_->Ended(server_->Submit("pear", R"(, "model": "o")")), "done");
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_F(RefusedGroupsTest, WhatWaitsForAModelThatIsBrokenAtTheNextStartIsMadeOnceItIsWhole) {
  Start("load=error", {"{model: TINY, layout: serial}", "{model: OTHER, layout: serial}"});
  ASSERT_NO_FATAL_FAILURE(Repair());
  server_->options().script += absl::StrCat(" gate=", server_->folder(), "/gate");
  ASSERT_TRUE(server_->Start());
  server_->WaitUntilReady();
  const std::string job = server_->Submit("gated apple", R"(, "model": "other")");
  WaitUntil("running", [&] { return server_->StatusOf(job) == "running"; });
  EXPECT_EQ(server_->Terminate(), 0);
  ASSERT_EQ(unlink((server_->folder() + "/models/other/model_index.json").c_str()), 0);
  ASSERT_TRUE(server_->Start());
  WaitForState(1, "refused");
  EXPECT_EQ(server_->StatusOf(job), "queued");
  server_->Write("gate", "");
  server_->Write("models/other/model_index.json", "{}");
  EXPECT_EQ(server_->Ended(job), "done");
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_F(RefusedGroupsTest, AServerOfWhichNoModelCanBeReadDoesNotStart) {
  Start("describe=error", {"{model: TINY, layout: serial}", "{model: OTHER, layout: serial}"});
  EXPECT_THAT(server_->ErrorsOfStart(), AllOf(HasSubstr("model tiny"), HasSubstr("describe fails as its script says")));
}

// Replicas of one model. A file contains the digest of its weights.
class ReplacedWeightsTest : public RefusedGroupsTest {
 protected:
  void StartWith(const std::string& digest) {
    Start("", {"{model: TINY, layout: serial, count: 2}"});
    server_->options().script = absl::StrCat("contents=", server_->folder(), "/digest");
    Replace(digest);
    ASSERT_TRUE(server_->Start());
    for (const size_t group : {0, 1}) WaitForState(group, "ready");
  }

  void Replace(const std::string& digest) { server_->Write("digest", digest); }

  // Returns the groups whose weights differ from those of the other replicas.
  std::vector<boost::json::object> Refused() {
    std::vector<boost::json::object> refused;
    for (const size_t group : {0, 1}) {
      boost::json::object found = server_->Group(group);
      if (found.at("state").as_string() == "refused") refused.push_back(std::move(found));
    }
    return refused;
  }

  void WaitForARefusal() {
    WaitUntil("a refusal", [&] { return Refused().size() == 1; });
  }

  std::string Picture() {
    const std::string job = server_->Submit("apple");
    EXPECT_EQ(server_->Ended(job), "done");
    return server_->ImageBytes(server_->Get(job));
  }
};

TEST_F(ReplacedWeightsTest, AReplicaWithOtherWeightsIsRefusedUntilTheOldOnesAreBack) {
  ASSERT_NO_FATAL_FAILURE(StartWith("aaaa"));
  Replace("bbbb");
  kill(server_->Workers().front(), SIGKILL);
  ASSERT_NO_FATAL_FAILURE(WaitForARefusal());
  EXPECT_THAT(boost::json::serialize(Refused().front()), AllOf(HasSubstr("aaaa"), HasSubstr("bbbb")));
  server_->WaitUntilLogged("the model's files were replaced");
  for (int i = 0; i < 4; ++i) EXPECT_THAT(Picture(), HasSubstr("Weights hash: aaaa"));
  Replace("aaaa");
  for (const size_t group : {0, 1}) WaitForState(group, "ready");
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_F(ReplacedWeightsTest, SighupBringsAllReplicasToTheNewOnes) {
  ASSERT_NO_FATAL_FAILURE(StartWith("aaaa"));
  Replace("bbbb");
  server_->Write("models/tiny/model_index.json", "{}");  // replacing a model changes one of its files
  ASSERT_TRUE(server_->ServingProcess().has_value());
  kill(*server_->ServingProcess(), SIGHUP);
  WaitUntil("the new weights", [&] { return absl::StrContains(Picture(), "Weights hash: bbbb"); });
  for (int i = 0; i < 4; ++i) EXPECT_THAT(Picture(), HasSubstr("Weights hash: bbbb"));
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_F(ReplacedWeightsTest, WorkersOfTheServerBeforeAreNotAdoptedWithTheOldOnes) {
  ASSERT_NO_FATAL_FAILURE(StartWith("aaaa"));
  server_->Kill();
  Replace("bbbb");
  server_->Write("models/tiny/model_index.json", "{}");
  ASSERT_TRUE(server_->Start());
  for (const size_t group : {0, 1}) WaitForState(group, "ready");
  for (int i = 0; i < 4; ++i) EXPECT_THAT(Picture(), HasSubstr("Weights hash: bbbb"));
  EXPECT_EQ(server_->Terminate(), 0);
}

}  // namespace
}  // namespace tessera
