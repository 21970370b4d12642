// Requests that must be refused with the documented answer: tests/http/bad_bodies.txt has those about fields of a
// generation, the tables below have all others. All use real connections to one server.
#include <gmock/gmock.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/api/field_checks.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/api/server_info.h"
#include "server/http/image_edit_form.h"
#include "tests/http/bad_bodies.h"
#include "tests/support/api_fixture.h"
#include "tests/support/fake_model.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct ErrorAnswer {
  std::string message, type, param, code;
};

// Returns nullopt if the body does not have the form of an error.
std::optional<ErrorAnswer> ReadError(const std::string& body) {
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(body, error);
  if (error || !value.is_object() || value.as_object().size() != 1) return std::nullopt;
  const auto* detail = value.as_object().if_contains("error");
  if (detail == nullptr || !detail->is_object() || detail->as_object().size() != 4) return std::nullopt;
  const auto text = [&](const char* name) {
    const auto* member = detail->as_object().if_contains(name);
    return member != nullptr && member->is_string() ? std::string(member->as_string()) : std::string();
  };
  return ErrorAnswer{text("message"), text("type"), text("param"), text("code")};
}

TEST(BadRequestsTest, EveryBadBodyOfTheTableGetsItsDocumentedAnswer) {
  ApiFixture api;
  HttpTestClient client(api.port());
  for (const BadBody& row : ReadBadBodies()) {
    SCOPED_TRACE(row.body);
    const TestResponse response = client.Call("POST", "/v1/images/generations", row.body);
    ASSERT_EQ(response.status, row.status) << response.body;
    const std::optional<ErrorAnswer> error = ReadError(response.body);
    ASSERT_TRUE(error.has_value()) << response.body;
    EXPECT_THAT(error->message, HasSubstr(row.message));
    // A scale of skip-layer guidance is refused because the layers are missing.
    const bool about_another = absl::StartsWith(row.message, "skip_layers");
    EXPECT_EQ(error->param, about_another ? "skip_layers" : row.field);
    EXPECT_THAT(error->message, StartsWith(error->param));
    EXPECT_EQ(error->type, "invalid_request_error");
    EXPECT_EQ(error->code, row.status == 404 ? "model_not_found" : "invalid_value");
    EXPECT_EQ(response.Header("x-should-retry"), "false");
    EXPECT_NE(response.Header("x-request-id"), "");
  }
  // None of these requests was accepted.
  EXPECT_EQ(api.service().Info().queued_jobs + api.service().Info().running_jobs, 0);
}

// Every word of these messages, which programs of users may compare.
TEST(BadRequestsTest, EveryBadBodyOfTheTableGetsTheRecordedMessage) {
  const char* path = "tests/http/bad_body_messages.txt";
  std::ifstream file(path);
  const std::string recorded{std::istreambuf_iterator<char>(file), {}};
  std::string messages;
  std::vector<BadBody> rows = ReadBadBodies();
  for (const char* field : {"prompt", "negative_prompt", "sampler", "model", "user", "safety_identifier"}) {
    rows.push_back(
        {.field = field, .body = absl::StrCat(R"({"prompt":"a",")", field, "\":\"", std::string(40000, 'x'), "\"}")});
    if (absl::string_view(field) == "prompt") rows.back().body.erase(1, 13);
  }
  for (const char* body : {R"({"prompt":"a","skip_layers":[1],"skip_layer_start":0.5,"skip_layer_stop":0.25})",
                           R"({"prompt":"a","skip_layers":[1],"skip_layer_scale":1000.5})",
                           R"({"prompt":"a","skip_layers":[1],"skip_layer_stop":-0.125})",
                           R"({"prompt":"a","original_width":0,"original_height":65537})",
                           R"({"prompt":"a","n":2,"seed":18446744073709551615})"}) {
    rows.push_back({.field = "", .body = body});
  }
  for (const BadBody& row : rows) {
    const absl::StatusOr<GenerationBody> body = ReadGenerationBody(row.body, BodyKind::kGeneration);
    const absl::Status status =
        body.ok() ? ValidateImageRequest(body->request, {FakeModel()}, RequestLimits(), 1).status() : body.status();
    absl::StrAppend(&messages, row.body.substr(0, 200), "\n", ErrorField(status), ": ", std::string(status.message()),
                    "\n");
  }
  if (std::getenv("TESSERA_UPDATE_DOCUMENTS") != nullptr) std::ofstream(path) << messages;
  EXPECT_EQ(recorded, messages) << "set TESSERA_UPDATE_DOCUMENTS=1 and run this test again";
}

TEST(BadRequestsTest, TheValuesOfAFormAreValidatedAsThoseOfJson) {
  const HttpRequest request = {
      .headers = {{"Content-Type", "multipart/form-data; boundary=b"}},
      .body =
          "--b\r\nContent-Disposition: form-data; name=\"image\"\r\n\r\nPNG\r\n"
          "--b\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na\r\n"
          "--b\r\nContent-Disposition: form-data; name=\"background\"\r\n\r\ntransparent\r\n--b--\r\n"};
  const absl::StatusOr<EditBody> form = ReadImageEditForm(request);
  ASSERT_TRUE(form.ok()) << form.status();
  const auto json = ReadGenerationBody(R"({"prompt":"a","background":"transparent"})", BodyKind::kGeneration);
  ASSERT_TRUE(json.ok()) << json.status();
  const auto status = [](const GenerationBody& body) {
    return ValidateImageRequest(body.request, {FakeModel()}, RequestLimits(), 1).status();
  };
  EXPECT_EQ(ErrorField(status(form->body)), "background");
  EXPECT_EQ(status(form->body), status(*json));
}

struct BadJson {
  std::string body;
  const char* message;
};

TEST(BadRequestsTest, WhatIsNotAFlatObjectOfJsonIsRefusedWithThePlace) {
  ApiFixture api;
  HttpTestClient client(api.port());
  const std::string deep_lists(200000, '[');
  const std::string deep_objects = [] {
    std::string text;
    for (int i = 0; i < 50000; ++i) text += "{\"a\":";
    return text;
  }();
  const std::vector<BadJson> rows = {
      {" ", "not valid JSON at byte"},
      {"a", "not valid JSON at byte 0"},
      {"null", "it is not an object"},
      {"[]", "it is not an object"},
      {"\"prompt\"", "it is not an object"},
      {"1", "it is not an object"},
      {"{}", "prompt is missing"},
      {R"({"prompt":null})", "prompt is missing"},
      {"{", "not valid JSON"},
      {R"({"prompt":"a")", "not valid JSON"},
      {R"({"prompt":"a",})", "not valid JSON"},
      {R"({"prompt":"a"}})", "not valid JSON"},
      {R"({"prompt":"a"} {"prompt":"a"})", "not valid JSON"},
      {R"({"prompt":"a"}x)", "not valid JSON"},
      {R"({'prompt':'a'})", "not valid JSON"},
      {R"({prompt:"a"})", "not valid JSON"},
      {R"({"prompt":"a" "n":1})", "not valid JSON"},
      {R"({"prompt":"a","n":01})", "not valid JSON"},
      {R"({"prompt":"a","n":+1})", "not valid JSON"},
      {R"({"prompt":"a","n":0x1})", "not valid JSON"},
      {R"({"prompt":"a","n":1.})", "not valid JSON"},
      {R"({"prompt":"a","n":.5})", "not valid JSON"},
      {R"({"prompt":"a","n":-})", "not valid JSON"},
      {R"({"prompt":"a","guidance_scale":NaN})", "not valid JSON"},
      {R"({"prompt":"a","guidance_scale":Infinity})", "not valid JSON"},
      {R"({"prompt":"a","guidance_scale":-Infinity})", "not valid JSON"},
      {R"({"prompt":"a","guidance_scale":1e400})", "not valid JSON"},
      {R"({"prompt":"a","guidance_scale":-1e400})", "not valid JSON"},
      {R"({"prompt":"a","n":1e99999999999})", "not valid JSON"},
      {R"({"prompt":"a","stream":True})", "not valid JSON"},
      {R"({"prompt":"a","stream":tru})", "not valid JSON"},
      {"{\"prompt\":\"a\nb\"}", "not valid JSON"},
      {"{\"prompt\":\"\xFF\"}", "not valid JSON"},
      {"{\"prompt\":\"\xC0\xAF\"}", "not valid JSON"},
      {"{\"prompt\":\"\xED\xA0\x80\"}", "not valid JSON"},
      {"{\"prompt\":\"\xF5\x80\x80\x80\"}", "not valid JSON"},
      {R"({"prompt":"\ud800"})", "not valid JSON"},
      {R"({"prompt":"\udc00"})", ""},
      {R"({"prompt":"\ux"})", "not valid JSON"},
      {R"({"prompt":"\x41"})", "not valid JSON"},
      {"{\"prompt\":\"a\"}//", "not valid JSON"},
      {"{\"prompt\":\"a\"/**/}", "not valid JSON"},
      {std::string("{\"prompt\":\"a\"}\0{}", 17), "a NUL byte"},
      {std::string("\xEF\xBB\xBF\xEF\xBB\xBF{}"), "not valid JSON"},
      {"\xFF\xFE{\0", "not valid JSON"},
      {R"({"prompt":"a","prompt":"b"})", "'prompt' is given twice"},
      {R"({"prompt":"a","n":1,"n":1})", "'n' is given twice"},
      {R"({"prompt":"a","\u006e":1,"n":1})", "'n' is given twice"},
      {R"({"prompt":{"a":1}})", "holds an object"},
      {R"({"prompt":"a","extra_body":{"seed":1}})", "holds an object"},
      {R"({"prompt":"a","skip_layers":[{}]})", "a list of objects; it must be a list of whole numbers"},
      {R"({"prompt":"a","loras":{"name":"a"}})", "holds an object"},
      {R"({"prompt":"a","loras":[{"name":{}}]})", "an object with an object in it"},
      {R"({"prompt":"a","loras":[{"name":[]}]})", "an object with a list in it"},
      {R"({"prompt":"a","loras":[{"name":"a","name":"b"}]})", "member 'name' is given twice"},
      {R"({"prompt":"a","loras":[{"name":"a"},1]})", "a list of objects and other values"},
      {R"({"prompt":"a","loras":[1,{"name":"a"}]})", "a list of objects and other values"},
      {R"({"prompt":"a","skip_layers":[[1]]})", "a list of lists"},
      {deep_lists, "it is not an object"},
      {R"({"prompt":)" + deep_lists, "a list of lists"},
      {deep_objects, "holds an object"},
      {R"({"prompt":")" + std::string(32769, 'a') + "\"}", "prompt has 32769 bytes; valid values are at most 32768"},
      {R"({"prompt":"a","user":")" + std::string(257, 'a') + "\"}", "user has 257 bytes"},
      {R"({"prompt":"a",")" + std::string(100000, 'x') + "\":1}", "is unknown"},
      {R"({"prompt":"a","seed":18446744073709551616})",
       "seed is 18446744073709551616; it must be a whole number from 0 to 18446744073709551615"},
      {R"({"prompt":"a","guidance_scale":1000.0001})",
       "guidance_scale is 1000.0001; it must be a number from 0 to 1000"},
      {R"({"prompt":"a","promt":"a"})", "field 'promt' is unknown; did you mean 'prompt'?"},
      {R"({"prompt":"a","steps":4})", "field 'steps' is unknown; did you mean 'num_inference_steps'?"},
      {R"({"prompt":"a","seed":18446744073709551615,"n":2})",
       "the seeds of 2 images count up from it, so valid values are at most 18446744073709551614"},
      {R"({"prompt":"a","skip_layers":[0],"skip_layer_start":0.9,"skip_layer_stop":0.1})", "at most the stop"},
      {R"({"prompt":"a","skip_layers":[0],"skip_layer_scale":-1})", "skip_layer_scale is -1"},
      {R"({"prompt":"a","skip_layers":[0],"skip_layer_stop":1.5})", "skip_layer_stop is 1.5"},
      {R"({"prompt":"a","output_format":"jpeg","output_compression":101})", "output_compression is 101"},
      {R"({"prompt":"a","stream":true,"partial_images":4})", "partial_images is 4; valid values are 0 to 3"},
      {R"({"prompt":"a","stream":true,"partial_images":-1})", "partial_images is -1"},
      {R"({"prompt":"a","original_width":0,"original_height":0})", "original_width is 0; valid values are 1 to 65536"},
  };
  for (const BadJson& row : rows) {
    SCOPED_TRACE(row.body.substr(0, 80));
    const TestResponse response = client.Call("POST", "/v1/images/generations", row.body);
    ASSERT_EQ(response.status, 400) << response.body.substr(0, 300);
    const std::optional<ErrorAnswer> error = ReadError(response.body);
    ASSERT_TRUE(error.has_value()) << response.body.substr(0, 300);
    EXPECT_THAT(error->message, HasSubstr(row.message));
    EXPECT_LT(response.body.size(), 2000u);
  }
}

struct BadCall {
  const char* method;
  std::string target;
  std::vector<HttpHeader> headers;
  int status;
  const char* message;
};

TEST(BadRequestsTest, WhatIsWrongAroundTheBodyGetsItsDocumentedAnswer) {
  ApiFixture api;
  HttpTestClient client(api.port());
  const std::string no_job = "/v1/jobs/job-000000000000000000000000000000000000000000000000";
  const std::string no_image = "/v1/images/img-000000000000000000000000000000000000000000000000";
  const std::vector<BadCall> rows = {
      {"GET", "/", {}, 404, "no such path"},
      {"GET", "/v1", {}, 404, "no such path"},
      {"GET", "/v1/", {}, 404, "no such path"},
      {"GET", "/v1/models/", {}, 404, "no such path"},
      {"GET", "//v1/models", {}, 404, "no such path"},
      {"GET", "/V1/models", {}, 404, "no such path"},
      {"GET", "/v1/models?", {}, 200, ""},
      {"GET", "/v1/models#", {}, 404, "no such path"},
      {"GET", "/v1/images/generations/", {}, 404, "no such path"},
      {"GET", "/metrics", {}, 404, "no such path"},
      {"GET", "/v1/jobs/a/b", {}, 404, "no such path"},
      {"GET", "/v1/../v1/models", {}, 404, "no such path"},
      {"GET", "/etc/passwd", {}, 404, "no such path"},
      {"GET", "/../../etc/passwd", {}, 404, "no such path"},
      {"GET", "/%2e%2e/%2e%2e/etc/passwd", {}, 404, "no such path"},
      {"GET", "/v1/images/..%2f..%2fetc%2fpasswd", {}, 404, "no such image"},
      {"GET", "/v1/images/../../etc/passwd", {}, 404, "no such path"},
      {"GET", "/v1/images/%00", {}, 404, "no such image"},
      {"GET", "/v1/images/%", {}, 404, "no such image"},
      {"GET", "/v1/images/%zz", {}, 404, "no such image"},
      {"GET", no_image, {}, 404, "no such image"},
      {"GET", no_job, {}, 404, "no such job"},
      {"DELETE", no_job, {}, 404, "no such job"},
      {"GET", no_job + "/events", {}, 404, "no such job"},
      {"GET", "/v1/jobs/..", {}, 404, "no such job"},
      {"GET", "/v1/jobs/%2e%2e%2f", {}, 404, "no such job"},
      {"GET", "/v1/models/gpt-5", {}, 404, "is unknown"},
      {"GET", "/v1/models/../fake", {}, 404, "is unknown"},
      {"GET", "/v1/models/fake%00", {}, 404, "is unknown"},
      {"GET", "/v1/models?limit=1", {}, 400, "reads no query parameters"},
      {"GET", "/v1/jobs?limit=0", {}, 400, "limit is '0'; valid values are 1 to 100"},
      {"GET", "/v1/jobs?limit=101", {}, 400, "limit is '101'"},
      {"GET", "/v1/jobs?limit=-1", {}, 400, "limit is '-1'"},
      {"GET", "/v1/jobs?limit=", {}, 400, "limit is ''"},
      {"GET", "/v1/jobs?limit=1e1", {}, 400, "limit is '1e1'"},
      {"GET", "/v1/jobs?limit=99999999999999999999", {}, 400, "limit is"},
      {"GET", "/v1/jobs?limits=1", {}, 400, "did you mean 'limit'?"},
      {"GET", "/v1/jobs?after=x", {}, 400, "after is not the end of a page"},
      {"GET", "/v1/jobs?after=page-000000000000000000000000000000000000000000000000", {}, 404, "after"},
      {"GET", "/v1/jobs?after=-00000000000000000000000000000000", {}, 400, "after is not the end of a page"},
      {"GET", "/v1/jobs?after=page", {}, 400, "must be the `next` of an earlier page"},
      {"GET", "/v1/jobs?status=runing", {}, 400, "did you mean 'running'?"},
      {"GET", "/v1/jobs?%6cimit=0", {}, 400, "limit is '0'"},
      {"PUT", "/v1/jobs", {}, 405, "this path takes POST, GET"},
      {"PATCH", no_job, {}, 405, "this path takes GET, DELETE"},
      {"POST", no_job, {}, 405, "this path takes GET, DELETE"},
      {"GET", "/v1/images/generations", {}, 404, "no such image"},
      {"DELETE", "/v1/images/generations", {}, 405, "this path takes POST, GET"},
      {"DELETE", "/v1/models/fake", {}, 405, "this path takes GET"},
      {"TRACE", "/v1/models", {}, 405, "this path takes GET"},
      {"CONNECT", "/v1/models", {}, 405, "this path takes GET"},
      {"BREW", "/v1/models", {}, 405, "this path takes GET"},
      {"OPTIONS", "/v1/models", {}, 405, "this path takes GET"},
      {"GET", "/v1/models", {{"Origin", "https://evil.example"}}, 403, "may not call this server"},
      {"OPTIONS", "/v1/models", {{"Origin", "https://evil.example"}}, 403, "may not call this server"},
      {"GET", "/v1/models", {{"Origin", "null"}}, 403, "may not call this server"},
      {"GET", "/livez", {{"Origin", "https://evil.example"}}, 403, "may not call this server"},
      {"GET", "/v1/models", {{"Content-Encoding", "gzip"}}, 415, "Content-Encoding"},
  };
  for (const BadCall& row : rows) {
    SCOPED_TRACE(absl::StrCat(row.method, " ", row.target));
    const TestResponse response = client.Call(row.method, row.target, "", row.headers);
    ASSERT_EQ(response.status, row.status) << response.body;
    if (row.status == 200) continue;
    const std::optional<ErrorAnswer> error = ReadError(response.body);
    ASSERT_TRUE(error.has_value()) << response.body;
    EXPECT_THAT(error->message, HasSubstr(row.message));
  }
}

TEST(BadRequestsTest, OnlyJsonThatIsSentAsItIsIsRead) {
  ApiFixture api;
  HttpTestClient client(api.port());
  const auto post = [&](const std::string& headers) {
    const std::string body = R"({"prompt":"a"})";
    client.Send(absl::StrCat("POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\n", headers,
                             "Content-Length: ", body.size(), "\r\n\r\n", body));
    return client.ReadResponse().status;
  };
  EXPECT_EQ(post("Content-Type: application/json\r\n"), 200);
  EXPECT_EQ(post("Content-Type: Application/JSON; charset=utf-8\r\n"), 200);
  EXPECT_EQ(post("Content-Type: application/json\r\nContent-Encoding: identity\r\n"), 200);
  EXPECT_EQ(post(""), 415);
  EXPECT_EQ(post("Content-Type: text/plain\r\n"), 415);
  EXPECT_EQ(post("Content-Type: application/x-www-form-urlencoded\r\n"), 415);
  EXPECT_EQ(post("Content-Type: multipart/form-data; boundary=a\r\n"), 415);
  EXPECT_EQ(post("Content-Type: application/jsonp\r\n"), 415);
  EXPECT_EQ(post("Content-Type: application/json\r\nContent-Encoding: gzip\r\n"), 415);
  EXPECT_EQ(post("Content-Type: application/json\r\nContent-Encoding: br\r\n"), 415);
  EXPECT_EQ(post("Content-Type: application/json\r\nIdempotency-Key: \r\n"), 400);
  EXPECT_EQ(post("Content-Type: application/json\r\nIdempotency-Key: \xFF\r\n"), 400);
  EXPECT_EQ(post(absl::StrCat("Content-Type: application/json\r\nIdempotency-Key: ", std::string(256, 'k'), "\r\n")),
            400);
  EXPECT_EQ(post("Content-Type: application/json\r\nIdempotency-Key: a\r\nIdempotency-Key: b\r\n"), 400);
}

}  // namespace
}  // namespace tessera::server
