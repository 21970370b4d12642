// Tests the deep probe of a real server when one of its ranks fails or hangs.
#include <gmock/gmock.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "server/http/http_server.h"
#include "tests/faults/moved_clock.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class ProbeTest : public ::testing::Test {
 protected:
  ProbeTest() : server_({.worker = FAKE_WORKER, .groups = {"{model: TINY, layout: \"cfg=2\"}"}}), clock_(server_) {
    server_.options().admin = "{port: 0}";
  }

  // While the file "when" exists, the second rank of the group fails in the first step of each job.
  void StartWith(const std::string& fault) {
    server_.options().script =
        absl::StrCat("rank1:step1=", fault, " when=", server_.folder(), "/when faults=", server_.folder(), "/faults");
    ASSERT_TRUE(server_.Start());
    server_.WaitUntilReady();
    EXPECT_EQ(Admin("/probe").status, 200);
    server_.Write("when", "");
  }

  TestResponse Admin(const std::string& target) { return HttpTestClient(server_.admin_port()).Call("GET", target); }

  std::unique_ptr<HttpTestClient> BeginProbe() {
    auto client = std::make_unique<HttpTestClient>(server_.admin_port());
    client->Send("GET /probe HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return client;
  }

  void EndFaults() { std::filesystem::remove(server_.folder() + "/when"); }

  void ExpectRecovery() {
    WaitUntil("a probe that finds nothing", [&] { return Admin("/probe").status == 200; });
  }

  TestServer server_;
  MovedClock clock_;
};

TEST_F(ProbeTest, OfARankThatFailsSaysWhichAndWhy) {
  StartWith("throw");
  const TestResponse response = Admin("/probe");
  EXPECT_EQ(response.status, 503) << response.body;
  EXPECT_EQ(response.Header("x-should-retry"), "true");
  EXPECT_THAT(response.body, HasSubstr("group tiny-0: rank 1 of 2: step1 throws as its script says"));
  EXPECT_THAT(response.body, HasSubstr(R"("code":"unavailable")"));
  EXPECT_EQ(Admin("/livez").status, 200);
  EndFaults();
  ExpectRecovery();
}

TEST_F(ProbeTest, OfARankThatHangsIsGivenUpInAMinuteWhileHealthIsAnswered) {
  StartWith("hang");
  std::vector<std::unique_ptr<HttpTestClient>> probes;
  probes.push_back(BeginProbe());
  WaitUntil("a rank that hangs", [&] { return std::filesystem::exists(server_.folder() + "/faults"); });
  // All handler threads of the listener are occupied now.
  while (static_cast<int>(probes.size()) < server::HttpServerOptions().handler_threads) probes.push_back(BeginProbe());
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Admin("/livez").status, 200);
    EXPECT_EQ(Admin("/readyz").status, 200);
  }
  clock_.Pass(absl::Seconds(50));
  EXPECT_EQ(Admin("/livez").status, 200);
  clock_.Pass(absl::Seconds(11));
  const TestResponse response = probes[0]->ReadResponse();
  EXPECT_EQ(response.status, 504) << response.body;
  EXPECT_THAT(response.body, HasSubstr("group tiny-0 gave no answer"));
  EXPECT_THAT(response.body, HasSubstr(R"("code":"deadline_exceeded")"));
  // The group is restarted when the server has seen no progress of the first step for five minutes.
  EndFaults();
  WaitUntil("the end of the group", [&] {
    clock_.Pass(absl::Minutes(1));
    const boost::json::object group = server_.Group();
    return group.at("state").as_string() != "ready" || group.at("restarts").to_number<int>() > 0;
  });
  for (size_t i = 1; i < probes.size(); ++i) EXPECT_THAT(probes[i]->ReadResponse().status, AnyOf(503, 504));
  ExpectRecovery();
}

}  // namespace
}  // namespace tessera
