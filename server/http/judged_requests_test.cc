// Tests of requests that a service of the operator judges before they are accepted.
#include <gmock/gmock.h>

#include <atomic>
#include <boost/json.hpp>
#include <future>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/fetch/input_check.h"
#include "tests/support/api_fixture.h"
#include "tests/support/scripted_web_server.h"
#include "tests/support/wait_until.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kBody[] = R"({"prompt":"a cat"})";

// An API whose requests the server at `judge` judges.
class JudgedApi : public ApiFixture {
 public:
  explicit JudgedApi(const ScriptedWebServer& judge, absl::Duration timeout = absl::Minutes(1)) {
    gate().SetRules(
        {.input_check = std::make_shared<InputCheck>(InputCheck::Options{
             .url = ParseHttpUrl(absl::StrCat("http://127.0.0.1:", judge.port(), "/")).value(), .timeout = timeout})});
  }

  std::string Jobs() { return Call("GET", "/v1/jobs").body; }
};

boost::json::object ErrorOf(const TestResponse& response) {
  return boost::json::parse(response.body).at("error").as_object();
}

TEST(JudgedRequestTest, ARefusalIsTheModerationErrorOfOpenAiAndMakesNoJob) {
  ScriptedWebServer judge(Sending(OkAnswer(R"({"allowed": false, "reason": "no cats"})")));
  JudgedApi api(judge);
  for (const char* route : {"/v1/images/generations", "/v1/jobs"}) {
    const TestResponse refused = api.Call("POST", route, kBody);
    EXPECT_EQ(refused.status, 400) << route;
    EXPECT_EQ(refused.Header("x-should-retry"), "false");
    const boost::json::object error = ErrorOf(refused);
    EXPECT_EQ(error.at("code").as_string(), "moderation_blocked");
    EXPECT_EQ(error.at("type").as_string(), "image_generation_user_error");
    EXPECT_TRUE(error.at("param").is_null());
    EXPECT_THAT(std::string(error.at("message").as_string()), HasSubstr(": no cats"));
  }
  EXPECT_THAT(api.Jobs(), HasSubstr(R"("data":[])"));
}

TEST(JudgedRequestTest, WithoutAJudgementTheRequestIsRefusedForNow) {
  ScriptedWebServer judge(Sending("HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n"));
  JudgedApi api(judge);
  const TestResponse refused = api.Call("POST", "/v1/jobs", kBody);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.Header("x-should-retry"), "true");
  EXPECT_NE(refused.Header("retry-after"), "");
  EXPECT_EQ(ErrorOf(refused).at("code").as_string(), "input_check_unavailable");
  EXPECT_THAT(api.Jobs(), HasSubstr(R"("data":[])"));
  EXPECT_THAT(api.service().MetricsText(), HasSubstr("input_check_unavailable"));
}

TEST(JudgedRequestTest, ARequestIsJudgedOnceAndOnlyIfItIsOtherwiseAccepted) {
  ScriptedWebServer judge(Sending(OkAnswer(R"({"allowed": true})")));
  JudgedApi api(judge);
  EXPECT_EQ(api.Call("POST", "/v1/jobs", R"({"prompt":"a","steps":0})").status, 400);
  EXPECT_EQ(api.Call("POST", "/v1/jobs", R"({"prompt":"a","model":"none"})").status, 404);
  EXPECT_THAT(judge.Requests(), IsEmpty());
  const std::vector<HttpHeader> key = {{"Idempotency-Key", "one"}};
  const TestResponse first = api.Call("POST", "/v1/jobs", kBody, key);
  EXPECT_EQ(first.status, 202) << first.body;
  EXPECT_EQ(api.Call("POST", "/v1/jobs", kBody, key).Header("location"), first.Header("location"));
  ASSERT_THAT(judge.Requests(), SizeIs(1));
  EXPECT_EQ(judge.Requests()[0].body, R"({"prompt":"a cat","negative_prompt":"","images":[],"key":"anonymous"})");
  EXPECT_EQ(api.Call("POST", "/v1/images/generations", kBody).status, 200);
  EXPECT_THAT(judge.Requests(), SizeIs(2));
}

TEST(JudgedRequestTest, ASlowJudgementDelaysNoOtherCall) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  ScriptedWebServer judge([released](const ScriptedWebServer::Request&, ScriptedWebServer::Peer& peer) {
    released.wait();
    peer.Send(OkAnswer(R"({"allowed": true})"));
  });
  JudgedApi api(judge);
  std::atomic<int> ended = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 16; ++i) {
    callers.emplace_back([&] {
      EXPECT_EQ(HttpTestClient(api.port(), absl::Minutes(2)).Call("POST", "/v1/jobs", kBody).status, 202);
      ++ended;
    });
  }
  WaitUntil("as many checks as may run at once", [&] { return judge.Requests().size() == 4; });
  EXPECT_EQ(api.Call("GET", "/v1/models").status, 200);
  EXPECT_EQ(ended, 0);
  release.set_value();
  for (std::thread& caller : callers) caller.join();
  EXPECT_THAT(judge.Requests(), SizeIs(16));
}

}  // namespace
}  // namespace tessera::server
