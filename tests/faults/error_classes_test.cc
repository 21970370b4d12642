// Tests which status the real server returns for each kind of job failure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/calls/api_keys.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

void ExpectAFailedJob(const TestResponse& response, const std::string& reason) {
  EXPECT_EQ(response.status, 500) << response.body;
  EXPECT_EQ(response.Header("x-should-retry"), "false");
  EXPECT_EQ(response.Header("retry-after"), "");
  EXPECT_THAT(response.body, HasSubstr(R"("code":"job_failed")"));
  EXPECT_THAT(response.body, HasSubstr(reason));
}

TEST(ErrorClassesTest, AQuarantinedJobIsAFailedJob) {
  TestServer server({.worker = FAKE_WORKER, .script = "step1-of-hemlock=die", .groups = {"{model: TINY}"}});
  ASSERT_TRUE(server.Start());
  ExpectAFailedJob(server.Call("POST", "/v1/images/generations", R"({"prompt": "hemlock", "size": "64x64"})"),
                   "was killed by signal 9");
  EXPECT_EQ(server.Ended(server.Submit("pear")), "done");
}

TEST(ErrorClassesTest, AJobOfAModelThatIsNoLongerServedIsAFailedJob) {
  TestServer server({.worker = FAKE_WORKER, .script = "load=hang", .groups = {"{model: TINY}", "{model: OTHER}"}});
  ASSERT_TRUE(server.Start());
  const std::string body = R"({"prompt": "pear", "size": "64x64", "model": "other"})";
  ASSERT_EQ(server.Call("POST", "/v1/jobs", body, "key").status, 202);
  server.Kill();
  server.options().groups = {"{model: TINY}"};
  ASSERT_TRUE(server.Start());
  ExpectAFailedJob(server.Call("POST", "/v1/images/generations", body, "key"), "the model is no longer served");
}

TEST(ErrorClassesTest, WhatTheWorkerRefusesWhenAJobStartsIsAnErrorOfTheRequest) {
  TestServer server({.worker = FAKE_WORKER, .script = "start-of-hemlock=error", .groups = {"{model: TINY}"}});
  ASSERT_TRUE(server.Start());
  const std::string body = R"({"prompt": "hemlock", "size": "64x64"})";
  const std::string error =
      R"({"message":"start fails as its script says","type":"invalid_request_error","param":null,"code":"invalid_value"})";
  const TestResponse response = server.Call("POST", "/v1/images/generations", body, "key");
  EXPECT_EQ(response.status, 400) << response.body;
  EXPECT_EQ(response.Header("x-should-retry"), "false");
  EXPECT_EQ(response.body, absl::StrCat(R"({"error":)", error, "}"));
  const std::string job = server.Submit("hemlock");
  EXPECT_EQ(server.Ended(job), "failed");
  EXPECT_EQ(boost::json::serialize(server.Get(job).at("error")), error);
  server.WaitUntilLogged(R"("error":"INVALID_ARGUMENT")");
  // The error is stored in the job record, not only in the process that observed it.
  server.Kill();
  ASSERT_TRUE(server.Start());
  EXPECT_EQ(boost::json::serialize(server.Get(job).at("error")), error);
  EXPECT_EQ(server.Call("POST", "/v1/images/generations", body, "key").status, 400);
}

TEST(ErrorClassesTest, WhatTheWorkerRefusesLaterIsAFailedJob) {
  TestServer server(
      {.worker = FAKE_WORKER, .script = "step3-of-hemlock=error error-every=2", .groups = {"{model: TINY}"}});
  ASSERT_TRUE(server.Start());
  ExpectAFailedJob(server.Call("POST", "/v1/images/generations", R"({"prompt": "hemlock", "size": "64x64"})"),
                   "step3 fails as its script says");
  ExpectAFailedJob(server.Call("POST", "/v1/images/generations", R"({"prompt": "pear", "size": "64x64"})"),
                   "as the fake worker's script says");
}

#ifdef HAS_REAL_WORKER
TEST(ErrorClassesTest, MoreStepsThanTheSamplerHasNoiseLevelsAreAnErrorOfTheRequest) {
  TestServer server({.worker = REAL_WORKER, .groups = {"{model: emoji, layout: \"cfg=2\", threads: 1}"}});
  ASSERT_TRUE(server.Start());
  const TestResponse response = server.Call("POST", "/v1/images/generations",
                                            R"({"prompt": "pear", "size": "64x64", "num_inference_steps": 1000})");
  EXPECT_EQ(response.status, 400) << response.body;
  EXPECT_THAT(response.body, HasSubstr(R"("param":"num_inference_steps")"));
  EXPECT_THAT(response.body, HasSubstr("num_inference_steps is 1000; the noise levels of steps"));
  EXPECT_THAT(response.body, HasSubstr("coincide; take fewer steps"));
  EXPECT_EQ(server.Ended(server.Submit("pear")), "done") << "with the same workers";
  EXPECT_EQ(boost::json::value_to<int64_t>(server.Group().at("restarts")), 0);
}
#endif

TEST(ErrorClassesTest, TheBoundsOfAKeyHaveACodeOfTheirOwn) {
  TestServer server({.worker = FAKE_WORKER, .script = "load=hang", .groups = {"{model: TINY}"}});
  server.options().settings = absl::StrCat("keys_file: ", server.folder(), "/keys.txt\nlimits: {queued_jobs: 3}\n");
  const absl::StatusOr<server::NewKey> few = server::NewApiKey("few", {.queued_jobs = 1});
  const absl::StatusOr<server::NewKey> costly = server::NewApiKey("costly", {.queued_device_seconds = 1e-9});
  const absl::StatusOr<server::NewKey> free = server::NewApiKey("free");
  server.Write("keys.txt", absl::StrCat(few->line, "\n", costly->line, "\n", free->line, "\n"));
  ASSERT_TRUE(server.Start());
  const auto submit = [&](const server::NewKey& key, int images) {
    return HttpTestClient(server.port())
        .Call("POST", "/v1/jobs", absl::StrCat(R"({"prompt": "a", "size": "64x64", "n": )", images, "}"),
              {{"Authorization", "Bearer " + key.secret}});
  };
  for (const auto& [key, images, code] :
       {std::tuple(*few, 2, "key_queue_full"), std::tuple(*costly, 1, "key_queue_full"),
        std::tuple(*free, 4, "queue_full")}) {
    const TestResponse refused = submit(key, images);
    EXPECT_EQ(refused.status, 429) << refused.body;
    EXPECT_THAT(refused.body, HasSubstr(absl::StrCat(R"("code":")", code, R"(")")));
    EXPECT_NE(refused.Header("retry-after"), "");
  }
  EXPECT_EQ(submit(*free, 1).status, 202);
}

}  // namespace
}  // namespace tessera
