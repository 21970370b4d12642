// Tests of jobs over a real socket (submitted, watched, listed, cancelled) and of the other routes of the API.
#include <gmock/gmock.h>

#include <algorithm>
#include <boost/json.hpp>
#include <condition_variable>
#include <future>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/api/job.h"
#include "server/calls/call_log.h"
#include "server/calls/call_metrics.h"
#include "server/http/admin_handler.h"
#include "tests/support/api_fixture.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

boost::json::object Parse(const std::string& text) {
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(text, error);
  EXPECT_FALSE(error) << text;
  return value.is_object() ? value.as_object() : boost::json::object();
}

std::string Text(const boost::json::value& value) { return std::string(value.as_string()); }

std::vector<std::string> EventNames(const std::string& stream) {
  std::vector<std::string> names;
  for (const absl::string_view line : absl::StrSplit(stream, '\n')) {
    if (line.substr(0, 7) == "event: ") names.emplace_back(line.substr(7));
  }
  return names;
}

std::string Submit(ApiFixture& api, const std::string& body = R"({"prompt":"a"})") {
  const TestResponse response = api.Call("POST", "/v1/jobs", body);
  EXPECT_EQ(response.status, 202) << response.body;
  return response.Header("location");
}

TEST(JobRoutesTest, AJobIsAcceptedAndDoneAndItsImagesAreListed) {
  ApiFixture api;
  const std::string job = Submit(api, R"({"prompt":"a","n":2,"seed":3,"user":"u","priority":-2})");
  ASSERT_TRUE(api.service().WaitForState(job.substr(9), JobState::kDone));
  const boost::json::object answer = Parse(api.Call("GET", job).body);
  EXPECT_EQ(Text(answer.at("status")), "done");
  EXPECT_EQ(Text(answer.at("user")), "u");
  EXPECT_EQ(answer.at("priority").as_int64(), -2);
  EXPECT_EQ(answer.at("steps_done").as_int64(), 8);
  ASSERT_THAT(answer.at("images").as_array(), SizeIs(2));
  EXPECT_EQ(answer.at("images").as_array()[1].at("seed").as_int64(), 4);
}

TEST(JobRoutesTest, AWatchReportsEveryStageInOrderAndEnds) {
  ApiFixture api({.service = {.paused = true}});
  const std::string job = Submit(api);
  HttpTestClient client(api.port());
  client.Send(absl::StrCat("GET ", job, "/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  EXPECT_THAT(client.ReadUntil("event: started"), HasSubstr("event: started"));
  for (int step = 1; step <= 4; ++step) {
    api.service().AllowSteps(1);
    const std::string wanted = absl::StrCat(R"("step":)", step);
    EXPECT_THAT(client.ReadUntil(wanted), HasSubstr(wanted));
  }
  const std::string rest = client.ReadUntil("\r\n0\r\n\r\n");
  EXPECT_THAT(EventNames(rest), ElementsAre("image", "done"));
}

TEST(JobRoutesTest, AWatchOfAnEndedJobReportsItsImagesAndItsEnd) {
  ApiFixture api;
  const std::string job = Submit(api);
  ASSERT_TRUE(api.service().WaitForState(job.substr(9), JobState::kDone));
  EXPECT_THAT(EventNames(api.Call("GET", job + "/events").body), ElementsAre("started", "image", "done"));
}

TEST(JobRoutesTest, AWatcherThatGoesAwayLeavesTheJobRunning) {
  ApiFixture api({.service = {.paused = true}});
  const std::string job = Submit(api);
  HttpTestClient client(api.port());
  client.Send(absl::StrCat("GET ", job, "/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  client.ReadUntil("event: started");
  client.Close();
  ASSERT_TRUE(api.service().WaitForWatches(0));
  api.service().AllowSteps(4);
  EXPECT_TRUE(api.service().WaitForState(job.substr(9), JobState::kDone));
}

TEST(JobRoutesTest, AHeadRequestForEventsDoesNotWaitForThem) {
  ApiFixture api({.service = {.paused = true}});
  const std::string job = Submit(api);
  HttpTestClient client(api.port());
  EXPECT_EQ(client.Call("HEAD", job + "/events").status, 200);
  EXPECT_EQ(client.Call("GET", "/livez").status, 200);
}

TEST(JobRoutesTest, CommentsKeepAStreamAliveWhileAJobWaits) {
  ApiFixture api({.service = {.paused = true}, .api = {.heartbeat = absl::Milliseconds(10)}});
  HttpTestClient client(api.port());
  client.Send(absl::StrCat("GET ", Submit(api), "/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  for (int i = 0; i < 3; ++i) EXPECT_THAT(client.ReadUntil(": waiting\n\n"), HasSubstr(": waiting\n\n"));
}

TEST(JobRoutesTest, ADeletedJobIsCancelledWhetherItWaitsOrRuns) {
  ApiFixture api({.service = {.paused = true}});
  const std::string running = Submit(api);
  const std::string waiting = Submit(api);
  ASSERT_TRUE(api.service().WaitForState(running.substr(9), JobState::kRunning));
  EXPECT_EQ(Text(Parse(api.Call("DELETE", waiting).body).at("status")), "cancelled");
  EXPECT_EQ(api.Call("DELETE", running).status, 200);
  EXPECT_TRUE(api.service().WaitForState(running.substr(9), JobState::kCancelled));
  EXPECT_EQ(Text(Parse(api.Call("DELETE", running).body).at("status")), "cancelled");
}

TEST(JobRoutesTest, APositionInTheQueueIsReported) {
  // A group whose first job has started takes the next one as well before it waits for a step. It takes none while it
  // waits for the start of the first.
  ApiFixture api({.service = {.script = "start-of-[held]=hang"}});
  const std::string first = Submit(api, R"({"prompt":"[held]"})");
  ASSERT_TRUE(api.service().WaitForState(first.substr(9), JobState::kRunning));
  Submit(api);
  EXPECT_EQ(Parse(api.Call("GET", Submit(api)).body).at("queue_position").as_int64(), 1);
}

TEST(JobRoutesTest, PagesOfAListHoldEveryJobOnceNewestFirst) {
  ApiFixture api;
  std::vector<std::string> submitted;
  for (int i = 0; i < 7; ++i) submitted.insert(submitted.begin(), Submit(api).substr(9));
  std::vector<std::string> listed;
  std::string after;
  do {
    const boost::json::object page =
        Parse(api.Call("GET", absl::StrCat("/v1/jobs?limit=3", after.empty() ? "" : "&after=", after)).body);
    for (const auto& job : page.at("data").as_array()) listed.push_back(Text(job.at("id")));
    after = page.at("has_more").as_bool() ? Text(page.at("next")) : "";
  } while (!after.empty() && listed.size() < 100);
  EXPECT_EQ(listed, submitted);
}

TEST(JobRoutesTest, AJobWhoseDeadlineHasPassedFails) {
  ApiFixture api({.service = {.paused = true}});
  const std::string job = Submit(api, R"({"prompt":"a","deadline_ms":1})");
  ASSERT_TRUE(api.service().WaitForState(job.substr(9), JobState::kFailed));
  EXPECT_EQ(Text(Parse(api.Call("GET", job).body).at("error").at("code")), "deadline_exceeded");
}

TEST(JobRoutesTest, ModelsAreFoundByIdAndAlias) {
  ApiFixture api({.service = {.models = {{.name = "org/one", .aliases = {"gpt-image-1"}}, {.name = "two"}}}});
  EXPECT_EQ(Text(Parse(api.Call("GET", "/v1/models/org/one").body).at("id")), "org/one");
  EXPECT_EQ(Text(Parse(api.Call("GET", "/v1/models/org%2Fone").body).at("id")), "org/one");
  EXPECT_EQ(Text(Parse(api.Call("GET", "/v1/models/gpt-image-1").body).at("alias_of")), "org/one");
  EXPECT_THAT(Parse(api.Call("GET", "/v1/models").body).at("data").as_array(), SizeIs(3));
  const TestResponse image = api.Call("POST", "/v1/images/generations", R"({"prompt":"a","model":"gpt-image-1"})");
  EXPECT_EQ(Text(Parse(image.body).at("model")), "org/one");
}

TEST(JobRoutesTest, QualityIsAPresetOfStepsThatAnExplicitNumberOverrules) {
  ApiFixture api;
  const auto steps = [&](const std::string& fields) {
    return Parse(api.Call("POST", "/v1/jobs", absl::StrCat(R"({"prompt":"a",)", fields, "}")).body)
        .at("num_inference_steps")
        .as_int64();
  };
  EXPECT_EQ(steps(R"("quality":"low")"), 2);
  EXPECT_EQ(steps(R"("quality":"auto")"), 4);
  EXPECT_EQ(steps(R"("quality":"hd")"), 8);
  EXPECT_EQ(steps(R"("quality":"low","num_inference_steps":7)"), 7);
}

TEST(JobRoutesTest, ScriptsOfAnAllowedOriginMayCall) {
  ApiFixture api({.api = {.hosts = {.origins = {"https://studio.example"}}}});
  const std::vector<HttpHeader> origin = {{"Origin", "https://studio.example"}};
  const TestResponse preflight = api.Call("OPTIONS", "/v1/images/generations", "", origin);
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.Header("access-control-allow-origin"), "https://studio.example");
  EXPECT_THAT(preflight.Header("access-control-allow-methods"), HasSubstr("POST"));
  EXPECT_EQ(api.Call("GET", "/v1/models", "", origin).Header("access-control-allow-origin"), "https://studio.example");
  EXPECT_EQ(api.Call("GET", "/v1/models").Header("access-control-allow-origin"), "");
}

TEST(JobRoutesTest, ScriptsOfAnAllowedOriginMaySendTheHeadersOfTheirClientsAndTracers) {
  ApiFixture api({.api = {.hosts = {.origins = {"https://studio.example"}}}});
  const std::string asked =
      "authorization,baggage,content-type,openai-organization,traceparent,tracestate,x-stainless-lang,x-stainless-os";
  const TestResponse preflight = api.Call("OPTIONS", "/v1/images/generations", "",
                                          {{"Origin", "https://studio.example"},
                                           {"Access-Control-Request-Method", "POST"},
                                           {"Access-Control-Request-Headers", asked}});
  EXPECT_EQ(preflight.status, 204);
  const std::vector<std::string> allowed = absl::StrSplit(preflight.Header("access-control-allow-headers"), ", ");
  EXPECT_EQ(allowed, (std::vector<std::string>(absl::StrSplit(asked, ','))));
  EXPECT_THAT(preflight.Header("vary"), HasSubstr("Access-Control-Request-Headers"));
}

TEST(JobRoutesTest, APreflightAllowsNoHeaderThatHasNoName) {
  ApiFixture api({.api = {.hosts = {.origins = {"https://studio.example"}}}});
  const TestResponse preflight =
      api.Call("OPTIONS", "/v1/jobs", "",
               {{"Origin", "https://studio.example"}, {"Access-Control-Request-Headers", "x-a, b c, , d:e, X-F"}});
  EXPECT_EQ(preflight.Header("access-control-allow-headers"), "x-a, x-f");
  EXPECT_EQ(api.Call("OPTIONS", "/v1/jobs", "",
                     {{"Origin", "https://other.example"}, {"Access-Control-Request-Headers", "x-a"}})
                .Header("access-control-allow-headers"),
            "");
}

TEST(JobRoutesTest, ScriptsOfAnAllowedOriginReadWhatCallersArePromised) {
  ApiFixture api({.api = {.hosts = {.origins = {"https://studio.example"}}}});
  const std::vector<HttpHeader> origin = {{"Origin", "https://studio.example"}};
  for (const TestResponse& response : {api.Call("POST", "/v1/jobs", R"({"prompt":"a"})", origin),
                                       api.Call("POST", "/v1/jobs", R"({"prompt":1})", origin)}) {
    const std::vector<std::string> exposed = absl::StrSplit(response.Header("access-control-expose-headers"), ", ");
    EXPECT_THAT(exposed, ::testing::IsSupersetOf({"Location", "x-should-retry", "Retry-After", "x-request-id"}));
  }
}

TEST(JobRoutesTest, TheServersOwnOriginIsKnownByTheSchemesOwnPortToo) {
  ApiFixture api;
  const auto status = [&](const std::string& host, const std::string& origin) {
    HttpTestClient client(api.port());
    client.Send(absl::StrCat("GET /v1/models HTTP/1.1\r\nHost: ", host, "\r\nOrigin: ", origin, "\r\n\r\n"));
    return client.ReadUntil("\r\n").substr(0, 12);
  };
  EXPECT_EQ(status("localhost:80", "http://localhost"), "HTTP/1.1 200");
  EXPECT_EQ(status("localhost:81", "http://localhost"), "HTTP/1.1 403");
}

TEST(JobRoutesTest, TheLocationOfAJobLiesUnderThePathOfThePublicUrl) {
  ApiFixture api({.api = {.public_url = "https://images.example/tessera"}});
  EXPECT_THAT(Submit(api), ::testing::StartsWith("/tessera/v1/jobs/job-"));
}

TEST(JobRoutesTest, ReadinessIsTheServicesAndLivenessIsNot) {
  ApiFixture api;
  EXPECT_EQ(api.Call("GET", "/readyz").status, 200);
  api.service().SetReady(absl::UnavailableError("no group is warm"));
  const TestResponse response = api.Call("GET", "/readyz");
  EXPECT_EQ(response.status, 503);
  EXPECT_THAT(response.body, HasSubstr("no group is warm"));
  EXPECT_EQ(api.Call("GET", "/livez").status, 200);
}

TEST(JobRoutesTest, TheRecordOfACallNamesRouteStatusAndJobButNoPrompt) {
  std::mutex mutex;
  std::vector<CallRecord> records;
  {
    ApiFixture api({.api = {.record = [&](const CallRecord& record) {
                      const std::lock_guard lock(mutex);
                      records.push_back(record);
                    }}});
    Submit(api, R"({"prompt":"secret words"})");
    api.Call("GET", "/nowhere/secret");
  }
  ASSERT_THAT(records, SizeIs(2));
  // A call is recorded after it was answered, so the next one may be recorded first.
  std::ranges::sort(records, {}, &CallRecord::status);
  EXPECT_EQ(records[0].route, "/v1/jobs");
  EXPECT_EQ(records[0].status, 202);
  EXPECT_THAT(records[0].job, ::testing::StartsWith("job-"));
  EXPECT_EQ(records[0].tenant, "anonymous");
  EXPECT_EQ(records[1].status, 404);
  for (const CallRecord& record : records) {
    EXPECT_THAT(base::LogText(CallLog().LineOf(record), absl::UnixEpoch()), ::testing::Not(HasSubstr("secret")));
  }
}

TEST(AdminHandlerTest, MetricsCountRequestsByRouteAndNotByWhatClientsMakeUp) {
  TestImageService service;
  CallMetrics metrics;
  AdminHandler handler(service, {.metrics = [&] { return absl::StrCat(service.MetricsText(), metrics.Text()); }});
  auto server = HttpServer::Start({}, handler);
  ASSERT_TRUE(server.ok()) << server.status();
  for (int i = 0; i < 3; ++i) metrics.Record({.method = "GET", .route = "/v1/models", .status = 200});
  for (int i = 0; i < 100; ++i) metrics.Record({.method = absl::StrCat("M", i), .status = 404});
  const TestResponse response = HttpTestClient((*server)->port()).Call("GET", "/metrics");
  EXPECT_EQ(response.status, 200);
  EXPECT_THAT(
      response.body,
      HasSubstr("tessera_requests_total{method=\"GET\",protocol=\"http\",route=\"/v1/models\",status=\"200\"} 3"));
  EXPECT_THAT(response.body, HasSubstr("tessera_queued_jobs{model=\"fake\"} 0"));
  EXPECT_THAT(response.body, ::testing::Not(HasSubstr("M42")));
}

TEST(AdminHandlerTest, LoadsAndUnloadsAdaptersByNameAndTakesNoPath) {
  TestImageService service({.adapters = {"style"}});
  const ServedAdapter adapter = service.ListModels()[0].adapters.at(0);
  AdminHandler handler(service, {});
  auto server = HttpServer::Start({}, handler);
  ASSERT_TRUE(server.ok()) << server.status();
  HttpTestClient client((*server)->port());
  for (const std::string path : {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}) {
    const TestResponse done = client.Call("POST", path, R"({"lora_name":"style"})");
    EXPECT_EQ(done.status, 200) << done.body;
    EXPECT_THAT(done.body, HasSubstr("\"lora_name\":\"style\""));
    EXPECT_EQ(client.Call("POST", path, R"({"lora_name":"other"})").status, 404);
    EXPECT_EQ(client.Call("GET", path).status, 405);
    const TestResponse with_path = client.Call("POST", path, R"({"lora_name":"style","lora_path":"/data/style"})");
    EXPECT_EQ(with_path.status, 400);
    EXPECT_THAT(with_path.body, HasSubstr("lora_path is not valid"));
    for (const char* body :
         {"", "[]", "{}", R"({"lora_name":7})", R"({"name":"style"})", R"({"lora_name":["style"]})"}) {
      EXPECT_EQ(client.Call("POST", path, body).status, 400) << body;
    }
    EXPECT_EQ(client.Call("POST", path, R"({"lora_name":"style"})", {{"Origin", "https://evil.example"}}).status, 403);
  }
  EXPECT_THAT(
      client.Call("POST", "/v1/load_lora_adapter", R"({"lora_name":"style"})").body,
      HasSubstr(absl::StrCat("\"parent\":\"fake\",\"digest\":\"", adapter.digest, "\",\"bytes\":", adapter.bytes)));
}

TEST(AdminHandlerTest, WhoMayNotMakeTheDevicesWorkMayNotChangeAdaptersEither) {
  TestImageService service({.adapters = {"style"}});
  AdminHandler handler(service, {.access = AdminAccess::kNone});
  auto server = HttpServer::Start({}, handler);
  ASSERT_TRUE(server.ok()) << server.status();
  HttpTestClient client((*server)->port());
  EXPECT_EQ(client.Call("POST", "/v1/load_lora_adapter", R"({"lora_name":"style"})").status, 403);
  EXPECT_EQ(client.Call("POST", "/v1/unload_lora_adapter", R"({"lora_name":"style"})").status, 403);
}

TEST(AdminHandlerTest, ServesItsFourPathsAndNothingOfTheApi) {
  TestImageService service;
  AdminHandler handler(service, {});
  auto server = HttpServer::Start({}, handler);
  ASSERT_TRUE(server.ok()) << server.status();
  HttpTestClient client((*server)->port());
  for (const char* path : {"/livez", "/readyz", "/metrics", "/probe"}) {
    EXPECT_EQ(client.Call("GET", path).status, 200) << path;
    EXPECT_EQ(client.Call("POST", path).status, 405) << path;
  }
  EXPECT_EQ(client.Call("GET", "/v1/models").status, 404);
  EXPECT_EQ(client.Call("GET", "/metrics", "", {{"Origin", "https://evil.example"}}).status, 403);
}

TEST(AdminHandlerTest, AnswersAProbeOfAKubeletWhateverNamesAreConfigured) {
  TestImageService service;
  AdminHandler handler(service, {.hosts = {.loopback = false, .hosts = {"tessera.example"}}});
  auto server = HttpServer::Start({}, handler);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto ask = [&](const std::string& path, const std::string& host) {
    HttpTestClient client((*server)->port());
    client.Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", host, "\r\n\r\n"));
    return client.ReadResponse().status;
  };
  for (const char* path : {"/livez", "/readyz", "/metrics"}) {
    EXPECT_EQ(ask(path, "10.1.2.3:9090"), 200) << path;
    EXPECT_EQ(ask(path, "no name"), 400) << path;
  }
  EXPECT_EQ(ask("/probe", "10.1.2.3:9090"), 421) << "it makes the groups work";
  EXPECT_EQ(ask("/probe", "tessera.example"), 200);
}

TEST(HealthTest, IsAnsweredWhileAllHandlerThreadsAreBusy) {
  constexpr int kThreads = 3;
  std::mutex mutex;
  std::condition_variable changed;
  int busy = 0;
  bool released = false;
  ApiFixture api({.service = {.before_submit =
                                  [&] {
                                    std::unique_lock lock(mutex);
                                    ++busy;
                                    changed.notify_all();
                                    changed.wait(lock, [&] { return released; });
                                  }},
                  .server = {.handler_threads = kThreads}});
  std::vector<std::future<TestResponse>> calls;
  for (int i = 0; i < kThreads; ++i) {
    calls.push_back(
        std::async(std::launch::async, [&] { return api.Call("POST", "/v1/jobs", R"({"prompt":"a"})", {}); }));
  }
  {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(30), [&] { return busy == kThreads; }));
  }
  EXPECT_EQ(api.Call("GET", "/livez").status, 200);
  EXPECT_EQ(api.Call("GET", "/readyz").status, 200);
  {
    const std::lock_guard lock(mutex);
    released = true;
    changed.notify_all();
  }
  for (std::future<TestResponse>& call : calls) EXPECT_EQ(call.get().status, 202);
}

}  // namespace
}  // namespace tessera::server
