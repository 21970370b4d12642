// Tests what happens to callers and jobs when a server is asked to terminate.
#include <gmock/gmock.h>
#include <signal.h>

#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DrainTest : public ::testing::Test {
 protected:
  // Starts a server whose jobs run until the gate is opened.
  void Start(const std::string& drain_time) {
    server_ =
        std::make_unique<TestServer>(TestServerOptions{.worker = FAKE_WORKER,
                                                       .groups = {"{model: TINY}"},
                                                       .settings = absl::StrCat("drain_time: ", drain_time, "\n")});
    server_->options().script = absl::StrCat("gate=", server_->folder(), "/gate");
    ASSERT_TRUE(server_->Start());
    server_->WaitUntilReady();
  }

  // Sends a request that waits for an image.
  std::unique_ptr<HttpTestClient> Ask(const std::string& more, const std::string& key = "") {
    auto client = std::make_unique<HttpTestClient>(server_->port());
    const std::string body = absl::StrCat(R"({"prompt": "gated", "size": "64x64", "seed": 5)", more, "}");
    client->Send(
        absl::StrCat("POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                     "application/json\r\n",
                     key.empty() ? "" : absl::StrCat("Idempotency-Key: ", key, "\r\n"), "Content-Length: ", body.size(),
                     "\r\n\r\n", body));
    return client;
  }

  // Only one job needs to be running: it blocks in its first step, so the others may still be queued.
  void WaitForJobs(int64_t count) {
    WaitUntil("the jobs", [&] {
      const TestResponse response = server_->Call("GET", "/v1/server");
      if (response.status != 200) return false;
      const boost::json::value info = boost::json::parse(response.body);
      return info.at("running_jobs").as_int64() > 0 &&
             info.at("running_jobs").as_int64() + info.at("queued_jobs").as_int64() == count;
    });
  }

  void OpenGate() { server_->Write("gate", ""); }

  std::unique_ptr<TestServer> server_;
};

TEST_F(DrainTest, AnswersWaitingCallersAtItsDeadlineAndKeepsTheirJobs) {
  Start("1s");
  const auto plain = Ask(""), keyed = Ask("", "mine"), stream = Ask(R"(, "stream": true, "partial_images": 1)");
  const std::string job = server_->Submit("gated");
  HttpTestClient watcher(server_->port());
  watcher.Send(absl::StrCat("GET /v1/jobs/", job, "/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  WaitForJobs(4);
  EXPECT_THAT(watcher.ReadUntil("event: "), HasSubstr("event: ")) << "it is followed before the server ends";

  server_->process().Signal(SIGTERM);
  for (const auto* caller : {&plain, &keyed}) {
    const TestResponse answer = (*caller)->ReadResponse();
    EXPECT_EQ(answer.status, 503);
    EXPECT_THAT(answer.body, HasSubstr(R"("code":"draining")"));
    EXPECT_EQ(answer.Header("Retry-After"), "1");
  }
  EXPECT_THAT(stream->ReadResponse().body, AllOf(HasSubstr("event: error"), HasSubstr(R"("code":"draining")")));
  EXPECT_THAT(watcher.ReadUntil(R"("code":"draining")"),
              AllOf(HasSubstr("event: error"), HasSubstr(R"("code":"draining")")));
  EXPECT_EQ(server_->process().Wait(), 0);

  OpenGate();
  ASSERT_TRUE(server_->Start());
  EXPECT_EQ(server_->Ended(job), "done");
  EXPECT_EQ(Ask("", "mine")->ReadResponse().status, 200);
  const boost::json::value jobs = boost::json::parse(server_->Call("GET", "/v1/jobs").body);
  int done = 0, cancelled = 0;
  for (const boost::json::value& each : jobs.at("data").as_array()) {
    done += each.at("status") == "done";
    cancelled += each.at("status") == "cancelled";
  }
  EXPECT_EQ(done, 2);
  EXPECT_EQ(cancelled, 2) << "nobody can come back for those without a key";
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_F(DrainTest, ASecondSignalEndsItAtOnceAndLosesNothing) {
  Start("10m");
  const std::string job = server_->Submit("gated");
  WaitForJobs(1);
  server_->process().Signal(SIGTERM);
  WaitUntil("draining", [&] { return server_->Call("GET", "/readyz").status == 503; });
  server_->process().Signal(SIGTERM);
  server_->process().Wait();

  OpenGate();
  ASSERT_TRUE(server_->Start());
  EXPECT_EQ(server_->Ended(job), "done");
  EXPECT_EQ(server_->Terminate(), 0);
}

}  // namespace
}  // namespace tessera
