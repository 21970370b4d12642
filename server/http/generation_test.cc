// Tests of generations over a real socket.
#include <gmock/gmock.h>

#include <boost/json.hpp>
#include <future>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/api/job.h"
#include "server/http/error_response.h"
#include "server/image/image_file.h"
#include "tests/support/api_fixture.h"
#include "tests/support/wait_until.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

boost::json::object Parse(const std::string& text) {
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(text, error);
  EXPECT_FALSE(error) << text;
  return value.is_object() ? value.as_object() : boost::json::object();
}

std::string Text(const boost::json::value& value) { return std::string(value.as_string()); }

TEST(GenerationTest, AnswersWithTheImageAndItsSeed) {
  ApiFixture api;
  const TestResponse response = api.Call("POST", "/v1/images/generations", R"({"prompt":"a","size":"32x48","seed":7})");
  ASSERT_EQ(response.status, 200) << response.body;
  const boost::json::object answer = Parse(response.body);
  ASSERT_EQ(answer.at("data").as_array().size(), 1u);
  const boost::json::object& image = answer.at("data").as_array()[0].as_object();
  EXPECT_EQ(image.at("seed").as_int64(), 7);
  std::string file;
  ASSERT_TRUE(absl::Base64Unescape(Text(image.at("b64_json")), &file));
  const absl::StatusOr<DecodedImage> decoded = DecodeImage(file);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->image.width, 32);
  EXPECT_EQ(decoded->image.height, 48);
  EXPECT_EQ(decoded->format, ImageFormat::kPng);
}

TEST(GenerationTest, TheAnswerRepeatsTheQuality) {
  ApiFixture api;
  for (const auto& [field, expected] : {std::pair(R"("quality":"high")", "high"), {R"("n":1)", "auto"}}) {
    const TestResponse response =
        api.Call("POST", "/v1/images/generations", absl::StrCat(R"({"prompt":"a",)", field, "}"));
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(Text(Parse(response.body).at("quality")), expected);
  }
}

TEST(GenerationTest, SeedsOfSeveralImagesCountUp) {
  ApiFixture api;
  const TestResponse response = api.Call("POST", "/v1/images/generations", R"({"prompt":"a","n":3,"seed":41})");
  ASSERT_EQ(response.status, 200) << response.body;
  const boost::json::object answer = Parse(response.body);
  std::vector<int64_t> seeds;
  for (const auto& image : answer.at("data").as_array()) seeds.push_back(image.at("seed").as_int64());
  EXPECT_EQ(seeds, (std::vector<int64_t>{41, 42, 43}));
}

TEST(GenerationTest, AdaptersAreListedWithTheirModelAndAJobSaysWhichBytesItHas) {
  ApiFixture api({.service = {.adapters = {"style"}}});
  const std::string digest = api.service().ListModels()[0].adapters.at(0).digest;
  ASSERT_EQ(digest.size(), 64u);
  const boost::json::object list = Parse(api.Call("GET", "/v1/models").body);
  const boost::json::object& adapter = list.at("data").as_array()[1].as_object();
  EXPECT_EQ(Text(adapter.at("id")), "style");
  EXPECT_EQ(Text(adapter.at("parent")), "fake");
  EXPECT_EQ(Text(adapter.at("adapter_digest")), digest);
  EXPECT_TRUE(list.at("data").as_array()[0].at("parent").is_null());
  EXPECT_EQ(Parse(api.Call("GET", "/v1/models/style").body), adapter);

  for (const char* body :
       {R"({"prompt":"a","loras":[{"name":"style","scale":1}]})", R"({"prompt":"a","model":"style"})",
        R"({"prompt":"a","loras":[{"scale":null,"name":"style"}]})"}) {
    const TestResponse response = api.Call("POST", "/v1/jobs", body);
    const boost::json::object job = Parse(response.body);
    EXPECT_EQ(Text(job.at("model")), "fake");
    ASSERT_EQ(job.at("loras").as_array().size(), 1u) << body;
    const boost::json::object& lora = job.at("loras").as_array()[0].as_object();
    EXPECT_EQ(Text(lora.at("name")), "style");
    EXPECT_EQ(lora.at("scale").to_number<double>(), 1);
    EXPECT_EQ(Text(lora.at("digest")), digest);
  }
}

TEST(GenerationTest, ATagInThePromptIsAnAdapterOrIsRefused) {
  ApiFixture api({.service = {.adapters = {"style"}}});
  for (const char* body :
       {R"({"prompt":"a cat <lora:style:0.5>"})", R"({"prompt":"<lora:style:0.5> a cat","model":"style"})"}) {
    const boost::json::object job = Parse(api.Call("POST", "/v1/jobs", body).body);
    EXPECT_EQ(Text(job.at("prompt")), "a cat");
    ASSERT_EQ(job.at("loras").as_array().size(), 1u) << body;
    EXPECT_EQ(job.at("loras").as_array()[0].at("scale").to_number<double>(), 0.5);
  }
  for (const auto& [body, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"prompt":"a <lora:styl:1>"})",
            "prompt has '<lora:styl:1>': the adapter 'styl' is unknown; valid values are style"},
           {R"({"prompt":"<lora:style:1>"})", "prompt is empty"}}) {
    const TestResponse refused = api.Call("POST", "/v1/images/generations", body);
    EXPECT_EQ(refused.status, 400);
    const boost::json::object error = Parse(refused.body).at("error").as_object();
    EXPECT_EQ(Text(error.at("param")), "prompt");
    EXPECT_THAT(Text(error.at("message")), ::testing::HasSubstr(message));
  }
}

TEST(GenerationTest, ARandomSeedIsReportedAndDiffersBetweenRequests) {
  ApiFixture api;
  for (const char* body : {R"({"prompt":"a"})", R"({"prompt":"a","seed":-1})"}) {
    const auto seed = [&] {
      const TestResponse response = api.Call("POST", "/v1/images/generations", body);
      return Parse(response.body).at("data").as_array()[0].at("seed").as_int64();
    };
    EXPECT_NE(seed(), seed()) << body;
  }
}

TEST(GenerationTest, ALinkLeadsToTheImage) {
  ApiFixture api;
  const TestResponse response =
      api.Call("POST", "/v1/images/generations", R"({"prompt":"a","response_format":"url","output_format":"webp"})");
  ASSERT_EQ(response.status, 200) << response.body;
  const boost::json::object answer = Parse(response.body);
  const std::string url = Text(answer.at("data").as_array()[0].at("url"));
  const std::string base = absl::StrCat("http://localhost:", api.port());
  ASSERT_THAT(url, StartsWith(base));
  const TestResponse image = api.Call("GET", url.substr(base.size()));
  EXPECT_EQ(image.status, 200);
  EXPECT_EQ(image.Header("content-type"), "image/webp");
  EXPECT_TRUE(DecodeImage(image.body).ok());
}

TEST(GenerationTest, AnErrorNamesTheFieldInTheFormOfOpenAi) {
  ApiFixture api;
  const TestResponse response = api.Call("POST", "/v1/images/generations", R"({"prompt":"a","num_inference_steps":0})");
  EXPECT_EQ(response.status, 400);
  const boost::json::object error = Parse(response.body).at("error").as_object();
  EXPECT_EQ(Text(error.at("message")), "num_inference_steps is 0; valid values are 1 to 1000, the nearest is 1");
  EXPECT_EQ(Text(error.at("param")), "num_inference_steps");
  EXPECT_EQ(Text(error.at("type")), "invalid_request_error");
  EXPECT_EQ(Text(error.at("code")), "invalid_value");
  EXPECT_EQ(response.Header("x-should-retry"), "false");
}

TEST(GenerationTest, NumbersInAnswersAreWrittenAsPeopleWriteThem) {
  ApiFixture api({.service = {.paused = true}});
  EXPECT_THAT(api.Call("GET", "/v1/models").body, HasSubstr("\"default_guidance_scale\":4.5,"));
  EXPECT_THAT(api.Call("GET", "/v1/server").body, HasSubstr("\"queued_device_seconds\":0.0"));
  const TestResponse job = api.Call("POST", "/v1/jobs", R"({"prompt":"a","guidance_scale":0})");
  ASSERT_EQ(job.status, 202) << job.body;
  EXPECT_THAT(job.body, HasSubstr("\"guidance_scale\":0.0,"));
}

TEST(GenerationTest, VariationsAreRefusedWithTheReason) {
  ApiFixture api;
  const TestResponse response = api.Call("POST", "/v1/images/variations", "--a\r\n\r\n--a--",
                                         {{"Content-Type", "multipart/form-data; boundary=a"}});
  EXPECT_EQ(response.status, 404);
  EXPECT_THAT(response.body, HasSubstr("does not make variations of images"));
  EXPECT_THAT(response.body, HasSubstr("POST /v1/images/edits"));
  EXPECT_EQ(response.Header("x-should-retry"), "false");
  EXPECT_EQ(api.Call("PUT", "/v1/images/edits", "{}").status, 405);
}

TEST(GenerationTest, AStreamBringsPartialImagesThenTheImageInOrder) {
  ApiFixture api;
  const TestResponse response =
      api.Call("POST", "/v1/images/generations", R"({"prompt":"a","stream":true,"partial_images":1,"n":2,"seed":5})");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.Header("content-type"), "text/event-stream");
  std::vector<std::string> events;
  std::vector<std::pair<int64_t, int64_t>> seeds;  // with their images' indices
  for (const absl::string_view part : absl::StrSplit(response.body, "\n\n", absl::SkipEmpty())) {
    if (absl::StartsWith(part, ":")) continue;
    const std::vector<std::string> lines = absl::StrSplit(part, '\n');
    ASSERT_EQ(lines.size(), 2u) << part;
    const boost::json::object data = Parse(lines[1].substr(6));
    EXPECT_EQ(lines[0], absl::StrCat("event: ", Text(data.at("type"))));
    events.push_back(absl::StrCat(Text(data.at("type")), " ", data.at("image_index").as_int64()));
    if (data.contains("seed")) seeds.emplace_back(data.at("image_index").as_int64(), data.at("seed").as_int64());
    EXPECT_EQ(data.contains("usage"), data.at("type") == "image_generation.completed");
    if (const auto* usage = data.if_contains("usage")) {
      EXPECT_EQ(*usage, boost::json::parse(R"({"total_tokens":0,"input_tokens":0,"output_tokens":0,
                                               "input_tokens_details":{"image_tokens":0,"text_tokens":0}})"));
    }
  }
  // A superseded preview may be missing, but none may come late.
  std::erase(events, "image_generation.partial_image 0");
  std::erase(events, "image_generation.partial_image 1");
  // Images end in any order.
  EXPECT_THAT(events, UnorderedElementsAre("image_generation.completed 0", "image_generation.completed 1"));
  EXPECT_THAT(seeds, UnorderedElementsAre(Pair(0, 5), Pair(1, 6)));
}

TEST(GenerationTest, AClientThatGoesAwayCancelsItsJob) {
  ApiFixture api({.service = {.paused = true}});
  HttpTestClient client(api.port());
  const std::string body = R"({"prompt":"a","stream":true})";
  ASSERT_TRUE(
      client.Send(absl::StrCat("POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                               "application/json\r\nContent-Length: ",
                               body.size(), "\r\n\r\n", body)));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("200 OK"));
  client.Close();
  EXPECT_TRUE(api.service().WaitForJobs(JobState::kCancelled, 1));
  EXPECT_TRUE(api.service().WaitForWatches(0));
}

TEST(GenerationTest, AClientThatDisconnectsWhileItsJobIsAcceptedLeavesNoJob) {
  std::promise<void> submitting, gone;
  ApiFixture api({.service = {.paused = true, .before_submit = [&] {
                                submitting.set_value();
                                gone.get_future().wait_for(std::chrono::seconds(60));
                              }}});
  HttpTestClient client(api.port());
  const std::string body = R"({"prompt":"a"})";
  client.Send(absl::StrCat("POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: ",
                           "application/json\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  ASSERT_EQ(submitting.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  client.Close();
  WaitUntil("no connection", [&] { return api.server().connections() == 0; });
  gone.set_value();
  EXPECT_TRUE(api.service().WaitForJobs(JobState::kCancelled, 1));
  EXPECT_TRUE(api.service().WaitForWatches(0));
}

TEST(GenerationTest, AFailedJobIsAnErrorThatClientsDoNotRetry) {
  ApiFixture api;
  const TestResponse response = api.Call("POST", "/v1/images/generations", R"({"prompt":"[fail]"})");
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(response.Header("x-should-retry"), "false");
  EXPECT_THAT(response.body, HasSubstr("step2 fails as its script says"));
}

TEST(GenerationTest, WhatOnlyTheModelRefusesIsAnErrorOfTheRequest) {
  ApiFixture api;
  const TestResponse response = api.Call("POST", "/v1/images/generations", R"({"prompt":"[misfit]"})");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.Header("x-should-retry"), "false");
  EXPECT_EQ(response.body, R"({"error":{"message":"num_inference_steps is 7; the model takes fewer",)"
                           R"("type":"invalid_request_error","param":"num_inference_steps","code":"invalid_value"}})");
}

TEST(GenerationTest, AJobThatKilledItsWorkersIsAFailedJobLikeAnyOther) {
  ApiFixture api;
  const TestResponse response = api.Call("POST", "/v1/images/generations", R"({"prompt":"[die]"})");
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(response.Header("x-should-retry"), "false");
  EXPECT_EQ(response.Header("retry-after"), "");
  EXPECT_THAT(response.body, HasSubstr(R"("code":"job_failed")"));
  EXPECT_THAT(response.body, HasSubstr("killed by signal 9"));
}

TEST(GenerationTest, OnlyWhatTheModelRefusesOfAFailedJobIsAnErrorOfTheRequest) {
  std::map<int, std::vector<absl::StatusCode>> by_status;
  for (int code = 1; code <= 16; ++code) {
    const HttpError error = HttpErrorOfFailedJob(absl::Status(static_cast<absl::StatusCode>(code), "x"));
    EXPECT_FALSE(error.should_retry) << code;
    EXPECT_FALSE(error.retry_after.has_value()) << code;
    by_status[error.status].push_back(static_cast<absl::StatusCode>(code));
  }
  EXPECT_THAT(by_status[400], ElementsAre(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(by_status[409], ElementsAre(absl::StatusCode::kCancelled));
  EXPECT_THAT(by_status[504], ElementsAre(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(by_status[500].size(), 13u);
  EXPECT_EQ(by_status.size(), 4u);
}

TEST(GenerationTest, AFullQueueSaysWhenToTryAgain) {
  ApiFixture api;
  const TestResponse response = api.Call("POST", "/v1/images/generations", R"({"prompt":"[refuse]"})");
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(response.Header("x-should-retry"), "true");
  EXPECT_EQ(response.Header("retry-after"), "2");
  EXPECT_THAT(response.body, HasSubstr(R"("code":"queue_full")"));
}

}  // namespace
}  // namespace tessera::server
