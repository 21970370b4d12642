#include "server/edge/server_edges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/http/http_test_client.h"
#include "server/service/fake_image_service.h"

namespace tessera {
namespace {

ServerConfig AnyPorts() {
  absl::StatusOr<ServerConfig> config =
      ReadServerConfig("listen: {http: {port: 0}, grpc: {port: 0}, admin: {port: 0}}\ngroups: [{model: fake}]\n");
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

TEST(ServerEdgesTest, EveryListenerOfTheConfigurationAnswersAndCallsAreLoggedAndCounted) {
  FakeImageService service;
  std::mutex mutex;
  std::vector<std::string> lines;
  auto edges = ServerEdges::Start(AnyPorts(), service, {.call = [&](const std::string& line) {
                                    const std::lock_guard lock(mutex);
                                    lines.push_back(line);
                                  }});
  ASSERT_TRUE(edges.ok()) << edges.status();
  EXPECT_NE((*edges)->grpc_port(), 0);
  HttpTestClient client((*edges)->http_port());
  EXPECT_EQ(client.Call("POST", "/v1/images/generations", R"({"prompt":"a"})").status, 200);
  EXPECT_EQ(client.Call("GET", "/metrics").status, 404);
  // A call is logged and counted behind its answer, which the client may have before.
  const auto logged = [&] {
    const std::lock_guard lock(mutex);
    return std::ranges::any_of(
        lines, [](const std::string& line) { return absl::StrContains(line, R"("route":"/v1/images/generations")"); });
  };
  const auto counted = [&] {
    const TestResponse metrics = HttpTestClient((*edges)->admin_port()).Call("GET", "/metrics");
    return absl::StrContains(metrics.body, "route=\"/v1/images/generations\",status=\"200\"} 1");
  };
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (!(logged() && counted()) && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(logged());
  EXPECT_TRUE(counted());
}

TEST(ServerEdgesTest, AListenerThatIsOffHasNoPort) {
  FakeImageService service;
  ServerConfig config = AnyPorts();
  config.grpc.enabled = config.admin.enabled = false;
  auto edges = ServerEdges::Start(config, service, {});
  ASSERT_TRUE(edges.ok()) << edges.status();
  EXPECT_EQ((*edges)->grpc_port(), 0);
  EXPECT_EQ((*edges)->admin_port(), 0);
}

TEST(ServerEdgesTest, DrainingEndsTheApiAndLeavesAdmin) {
  FakeImageService service;
  auto edges = ServerEdges::Start(AnyPorts(), service, {});
  ASSERT_TRUE(edges.ok()) << edges.status();
  HttpTestClient idle((*edges)->http_port());
  ASSERT_EQ(idle.Call("GET", "/livez").status, 200);
  (*edges)->Drain(absl::Seconds(60));
  EXPECT_TRUE(idle.WaitForEnd());
  EXPECT_EQ(HttpTestClient((*edges)->admin_port()).Call("GET", "/livez").status, 200);
}

TEST(ServerEdgesTest, APortThatIsTakenAndAFileThatIsMissingAreErrors) {
  FakeImageService service;
  auto first = ServerEdges::Start(AnyPorts(), service, {});
  ASSERT_TRUE(first.ok()) << first.status();
  ServerConfig config = AnyPorts();
  config.http.port = (*first)->http_port();
  EXPECT_EQ(ServerEdges::Start(config, service, {}).status().code(), absl::StatusCode::kUnavailable);
  config = AnyPorts();
  config.grpc.port = (*first)->grpc_port();
  EXPECT_EQ(ServerEdges::Start(config, service, {}).status().code(), absl::StatusCode::kUnavailable);
  config = AnyPorts();
  config.keys_file = "no-such-keys";
  EXPECT_EQ(ServerEdges::Start(config, service, {}).status().code(), absl::StatusCode::kNotFound);
  config = AnyPorts();
  config.tls = {.certificate_chain = "no.pem", .private_key = "no.key"};
  EXPECT_EQ(ServerEdges::Start(config, service, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tessera
