// Tests a server with a limit of 64 open files, and peers that open more connections than that and stay silent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

using Connections = std::vector<std::unique_ptr<HttpTestClient>>;

class FewDescriptorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(server_.Start());
    server_.WaitUntilReady();
  }

  static void Open(uint16_t port, Connections& connections) {
    for (int i = 0; i < 100; ++i) connections.push_back(std::make_unique<HttpTestClient>(port));
  }

  TestResponse Admin(const std::string& path) { return HttpTestClient(server_.admin_port()).Call("GET", path); }

  // Returns the value of a metric in /metrics, or -1 if it is missing.
  double Figure(const std::string& name) {
    const std::string metrics = "\n" + Admin("/metrics").body;
    const size_t at = metrics.find(absl::StrCat("\n", name, " "));
    double value = -1;
    if (at == std::string::npos) return value;
    const size_t begin = at + name.size() + 2;
    EXPECT_TRUE(absl::SimpleAtod(metrics.substr(begin, metrics.find('\n', begin) - begin), &value));
    return value;
  }

  void ExpectServed() {
    EXPECT_EQ(Admin("/livez").status, 200);
    EXPECT_EQ(Admin("/readyz").status, 200);
    EXPECT_EQ(Figure("process_max_fds"), 64);
    EXPECT_LT(Figure("process_open_fds"), 64);
    EXPECT_EQ(server_.Call("GET", "/v1/models").status, 200);
    EXPECT_EQ(server_.Ended(server_.Submit("apple")), "done");
  }

  TestServer server_ = TestServer({.worker = FAKE_WORKER,
                                   .script = "step-time=0",
                                   .fake_workers = true,
                                   .groups = {"{model: nowhere}"},
                                   .grpc = "{port: 0}",
                                   .admin = "{port: 0}",
                                   .open_files = 64});
};

TEST_F(FewDescriptorsTest, IdleConnectionsToHttpSilenceNeitherTheApiNorAdmin) {
  Connections idle;
  Open(server_.port(), idle);
  ExpectServed();
  EXPECT_GT(Figure("tessera_connections_closed_idle_total{listener=\"http\"}"), 50);
}

TEST_F(FewDescriptorsTest, IdleConnectionsToAdminSilenceNeitherTheApiNorAdmin) {
  Connections idle;
  Open(server_.admin_port(), idle);
  ExpectServed();
  EXPECT_GT(Figure("tessera_connections_closed_idle_total{listener=\"admin\"}"), 50);
}

TEST_F(FewDescriptorsTest, IdleConnectionsToGrpcSilenceNeitherTheApiNorAdmin) {
  Connections idle;
  Open(server_.grpc_port(), idle);
  ExpectServed();
}

TEST_F(FewDescriptorsTest, IdleConnectionsToHttpMakeRoomForThoseToGrpc) {
  Connections idle;
  Open(server_.port(), idle);
  // The server speaks first in HTTP/2: it sends its settings, a frame of type 4.
  HttpTestClient grpc(server_.grpc_port());
  grpc.Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string("\0\0\0\4\0\0\0\0\0", 9));
  EXPECT_THAT(grpc.ReadUntil("\4"), ::testing::HasSubstr("\4"));
}

TEST_F(FewDescriptorsTest, SaysInItsLogThatConnectionsFindNone) {
  Connections idle;
  Open(server_.port(), idle);
  WaitUntil("a line of it",
            [this] { return absl::StrContains(server_.process().errors(), "listener http has no descriptor for "); });
}

TEST_F(FewDescriptorsTest, AServerWithTooFewForAnyConnectionDoesNotStart) {
  server_.options().open_files = 48;
  EXPECT_THAT(server_.ErrorsOfStart(), ::testing::AllOf(::testing::HasSubstr("(RLIMIT_NOFILE) is 48, and "),
                                                        ::testing::HasSubstr("LimitNOFILE=")));
}

TEST_F(FewDescriptorsTest, AWorkerThatDiesIsReplacedDespiteIdleConnections) {
  Connections idle;
  Open(server_.port(), idle);
  Open(server_.admin_port(), idle);
  for (const pid_t worker : server_.Workers()) kill(worker, SIGKILL);
  WaitUntil("another worker", [this] { return server_.Group().at("restarts").to_number<int>() == 1; });
  server_.WaitUntilReady();
  ExpectServed();
}

}  // namespace
}  // namespace tessera
