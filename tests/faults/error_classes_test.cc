// Which status a caller gets from the real server for what can go wrong with its job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/service/api_keys.h"
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
  TestServer server({.worker = FAKE_WORKER, .orders = "step1-of-hemlock=die", .groups = {"{model: TINY}"}});
  ASSERT_TRUE(server.Start());
  ExpectAFailedJob(server.Call("POST", "/v1/images/generations", R"({"prompt": "hemlock", "size": "64x64"})"),
                   "was killed by signal 9");
  EXPECT_EQ(server.Ended(server.Submit("pear")), "done");
}

TEST(ErrorClassesTest, AJobOfAModelThatIsNoLongerServedIsAFailedJob) {
  TestServer server({.worker = FAKE_WORKER, .orders = "load=hang", .groups = {"{model: TINY}", "{model: OTHER}"}});
  ASSERT_TRUE(server.Start());
  const std::string body = R"({"prompt": "pear", "size": "64x64", "model": "other"})";
  ASSERT_EQ(server.Call("POST", "/v1/jobs", body, "key").status, 202);
  server.Kill();
  server.options().groups = {"{model: TINY}"};
  ASSERT_TRUE(server.Start());
  ExpectAFailedJob(server.Call("POST", "/v1/images/generations", body, "key"), "the model is no longer served");
}

TEST(ErrorClassesTest, TheBoundsOfAKeyHaveACodeOfTheirOwn) {
  TestServer server({.worker = FAKE_WORKER, .orders = "load=hang", .groups = {"{model: TINY}"}});
  server.options().settings = absl::StrCat("keys_file: ", server.folder(), "/keys.txt\nlimits: {queued_jobs: 3}\n");
  const absl::StatusOr<NewKey> few = NewApiKey("few", {.queued_jobs = 1});
  const absl::StatusOr<NewKey> costly = NewApiKey("costly", {.queued_device_seconds = 1e-9});
  const absl::StatusOr<NewKey> free = NewApiKey("free");
  server.Write("keys.txt", absl::StrCat(few->line, "\n", costly->line, "\n", free->line, "\n"));
  ASSERT_TRUE(server.Start());
  const auto submit = [&](const NewKey& key, int images) {
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
