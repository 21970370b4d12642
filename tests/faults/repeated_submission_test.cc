// Checks that a caller that repeats its request because it did not receive the answer gets the same job, over HTTP from
// the real server, even if a limit has been reached in the meantime.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "server/calls/api_keys.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr char kBody[] = R"({"prompt": "gated apple", "size": "64x64"})";
constexpr char kOtherBody[] = R"({"prompt": "gated pear", "size": "64x64"})";

TEST(RepeatedSubmissionTest, AFullQueueAndTheBoundsOfAKeyRefuseOnlyWhatIsNew) {
  TestServer server({.worker = FAKE_WORKER, .script = "load=hang", .groups = {"{model: TINY}"}});
  server.options().settings = absl::StrCat("keys_file: ", server.folder(), "/keys.txt\nlimits: {queued_jobs: 3}\n");
  std::string keys;
  const auto add_key = [&](const std::string& name, const server::KeyLimits& limits) {
    const absl::StatusOr<server::NewKey> key = server::NewApiKey(name, limits);
    absl::StrAppend(&keys, key->line, "\n");
    return key->secret;
  };
  const std::string few = add_key("few", {.queued_jobs = 1});
  const std::string slow = add_key("slow", {.requests_per_minute = 1});
  const std::string free = add_key("free", {});
  server.Write("keys.txt", keys);
  ASSERT_TRUE(server.Start());
  const auto submit = [&](const std::string& secret, const std::string& key, const std::string& body) {
    return HttpTestClient(server.port())
        .Call("POST", "/v1/jobs", body, {{"Authorization", "Bearer " + secret}, {"Idempotency-Key", key}});
  };
  for (const auto& [secret, reason] :
       {std::pair(few, "this key may have 1 images"), std::pair(slow, "this key may make 1 requests a minute"),
        std::pair(free, "the queue is full")}) {
    SCOPED_TRACE(reason);
    const TestResponse first = submit(secret, "one", kBody);
    EXPECT_EQ(first.status, 202) << first.body;
    for (int i = 0; i < 3; ++i) {
      const TestResponse refused = submit(secret, "two", kBody);
      EXPECT_EQ(refused.status, 429);
      EXPECT_THAT(refused.body, HasSubstr(reason));
      const TestResponse again = submit(secret, "one", kBody);
      EXPECT_EQ(again.status, 202) << again.body;
      EXPECT_EQ(again.Header("location"), first.Header("location"));
      EXPECT_EQ(submit(secret, "one", kOtherBody).status, 409);
    }
  }
}

TEST(RepeatedSubmissionTest, AServerThatEndsRefusesOnlyWhatIsNew) {
  TestServer server({.worker = FAKE_WORKER, .groups = {"{model: TINY}"}, .settings = "drain_time: 10m\n"});
  server.options().script = absl::StrCat("gate=", server.folder(), "/gate");
  ASSERT_TRUE(server.Start());
  const TestResponse first = server.Call("POST", "/v1/jobs", kBody, "one");
  ASSERT_EQ(first.status, 202) << first.body;
  const std::string job = first.Header("location").substr(9);
  WaitUntil("running", [&] { return server.StatusOf(job) == "running"; });
  server.process().Signal(SIGTERM);
  WaitUntil("draining", [&] { return server.Call("GET", "/readyz").status == 503; });
  EXPECT_EQ(server.Call("POST", "/v1/jobs", kBody, "two").status, 503);
  const TestResponse again = server.Call("POST", "/v1/jobs", kBody, "one");
  EXPECT_EQ(again.status, 202) << again.body;
  EXPECT_EQ(again.Header("location"), first.Header("location"));
  EXPECT_EQ(server.Call("POST", "/v1/jobs", kOtherBody, "one").status, 409);
  server.Write("gate", "");
  EXPECT_EQ(server.process().Wait(), 0) << server.process().errors();
  ASSERT_TRUE(server.Start());
  EXPECT_EQ(server.Call("POST", "/v1/jobs", kBody, "one").Header("location"), first.Header("location"));
}

}  // namespace
}  // namespace tessera
