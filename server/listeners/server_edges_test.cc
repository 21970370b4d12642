#include "server/listeners/server_edges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log/log_line.h"
#include "tests/support/http_test_client.h"
#include "tests/support/scripted_web_server.h"
#include "tests/support/test_folder.h"
#include "tests/support/test_image_service.h"
#include "tests/support/wait_until.h"

namespace tessera::server {
namespace {

ServerConfig AnyPorts() {
  absl::StatusOr<ServerConfig> config =
      ReadServerConfig("listen: {http: {port: 0}, grpc: {port: 0}, admin: {port: 0}}\ngroups: [{model: fake}]\n");
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

struct WrittenKey {
  std::string path;
  std::string secret;
};

WrittenKey KeysFile(const TestFolder& folder, const std::string& name) {
  const absl::StatusOr<NewKey> key = NewApiKey("me");
  EXPECT_TRUE(key.ok()) << key.status();
  return {.path = folder.Write(name, key->line + "\n"), .secret = key->secret};
}

std::string Text(const boost::json::object& line, const char* name) { return std::string(line.at(name).as_string()); }

TEST(ServerEdgesTest, EveryListenerOfTheConfigurationAnswersAndCallsAreLoggedAndCounted) {
  TestImageService service;
  std::mutex mutex;
  std::vector<std::string> lines;
  auto edges = ServerEdges::Start(AnyPorts(), service, {.call = [&](const base::LogLine& line) {
                                    const std::lock_guard lock(mutex);
                                    lines.push_back(base::LogText(line, absl::Now()));
                                  }});
  ASSERT_TRUE(edges.ok()) << edges.status();
  EXPECT_NE((*edges)->grpc_port(), 0);
  HttpTestClient client((*edges)->http_port());
  EXPECT_EQ(client.Call("POST", "/v1/images/generations", R"({"prompt":"a"})").status, 200);
  EXPECT_EQ(client.Call("GET", "/metrics").status, 404);
  // A call is logged and counted after its answer was sent, so the client may be faster.
  const auto logged = [&] {
    const std::lock_guard lock(mutex);
    return std::ranges::any_of(
        lines, [](const std::string& line) { return absl::StrContains(line, R"("route":"/v1/images/generations")"); });
  };
  const auto counted = [&] {
    const TestResponse metrics = HttpTestClient((*edges)->admin_port()).Call("GET", "/metrics");
    return absl::StrContains(metrics.body, "route=\"/v1/images/generations\",status=\"200\"} 1");
  };
  WaitUntil("the line of the log", logged);
  WaitUntil("the count", counted);
}

TEST(ServerEdgesTest, ThePageAtThePublicUrlMayCallWhateverItsPathAndPort) {
  TestImageService service;
  const std::pair<const char*, const char*> cases[] = {
      {"https://images.example/tessera", "https://images.example"},
      {"https://images.example:443", "https://images.example"},
      {"https://images.example:8443/a", "https://images.example:8443"}};
  for (const auto& [public_url, origin] : cases) {
    ServerConfig config = AnyPorts();
    config.public_url = public_url;
    auto edges = ServerEdges::Start(config, service, {});
    ASSERT_TRUE(edges.ok()) << edges.status();
    HttpTestClient client((*edges)->http_port());
    EXPECT_EQ(client.Call("GET", "/v1/models", "", {{"Origin", origin}}).status, 200) << public_url;
    EXPECT_EQ(client.Call("GET", "/v1/models", "", {{"Origin", "https://images.example:1"}}).status, 403);
  }
}

TEST(ServerEdgesTest, CallsThatCannotBeReadAndThoseOfAdminAreLoggedAndCountedToo) {
  TestImageService service;
  std::mutex mutex;
  std::vector<boost::json::object> lines;
  auto edges = ServerEdges::Start(AnyPorts(), service, {.call = [&](const base::LogLine& line) {
                                    const std::lock_guard lock(mutex);
                                    lines.push_back(line.fields);
                                  }});
  ASSERT_TRUE(edges.ok()) << edges.status();
  struct Case {
    std::string request;
    int status;
    std::string error;
  };
  for (const Case& refused : {Case{"GARBAGE\r\n\r\n", 400, "malformed_request"},
                              Case{"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                                   "Content-Length: 1000000000\r\n\r\n",
                                   413, "body_too_large"},
                              Case{absl::StrCat("GET / HTTP/1.1\r\nHost: ", std::string(100'000, 'x'), "\r\n\r\n"), 431,
                                   "header_too_large"}}) {
    HttpTestClient client((*edges)->http_port());
    client.Send(refused.request);
    const TestResponse answer = client.ReadResponse();
    EXPECT_EQ(answer.status, refused.status);
    const auto logged = [&] {
      const std::lock_guard lock(mutex);
      return std::ranges::any_of(lines, [&](const boost::json::object& line) {
        return Text(line, "request_id") == answer.Header("x-request-id") && Text(line, "error") == refused.error &&
               Text(line, "peer") == "127.0.0.1" && line.at("status").to_number<int>() == refused.status;
      });
    };
    WaitUntil(absl::StrCat("the line of a call with status ", refused.status), logged);
  }
  HttpTestClient admin((*edges)->admin_port());
  const TestResponse first = admin.Call("GET", "/metrics", "", {{"x-request-id", "scrape-1"}});
  EXPECT_EQ(first.Header("x-request-id"), "scrape-1");
  for (const char* status : {"400", "413", "431"}) {
    EXPECT_TRUE(absl::StrContains(first.body, absl::StrCat("route=\"none\",status=\"", status, "\"} 1"))) << status;
  }
  // The calls are on one connection, so the first is recorded before the second is read.
  EXPECT_TRUE(
      absl::StrContains(admin.Call("GET", "/metrics").body, R"(protocol="admin",route="/metrics",status="200"} 1)"));
  const std::lock_guard lock(mutex);
  EXPECT_TRUE(std::ranges::any_of(lines, [&](const boost::json::object& line) {
    return Text(line, "request_id") == "scrape-1" && Text(line, "protocol") == "admin" &&
           Text(line, "route") == "/metrics";
  }));
}

TEST(ServerEdgesTest, BodiesAreReadUpToTheLimitsOfTheConfiguration) {
  ServerConfig config = AnyPorts();
  config.limits.body_bytes = 2048;
  config.limits.picture_body_bytes = 2 << 20;
  config.limits.receiving_bytes = 1 << 20;
  TestImageService service;
  auto edges = ServerEdges::Start(config, service, {});
  ASSERT_TRUE(edges.ok()) << edges.status();
  const auto status = [&](const std::string& path, size_t bytes) {
    HttpTestClient client((*edges)->http_port());
    client.Send(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
                             "Content-Length: ", bytes, "\r\n\r\n"));
    if (bytes <= 1 << 20) client.Send(std::string(bytes, ' '));
    return client.ReadResponse().status;
  };
  EXPECT_EQ(status("/v1/images/generations", 2048), 400) << "it was read, and is no JSON";
  EXPECT_EQ(status("/v1/images/generations", 2049), 413);
  EXPECT_EQ(status("/v1/jobs", 1 << 20), 400);
  EXPECT_EQ(status("/v1/jobs", (1 << 20) + 1), 413) << "it would never fit";
  config.limits.receiving_bytes = 4 << 20;
  edges = ServerEdges::Start(config, service, {});
  ASSERT_TRUE(edges.ok()) << edges.status();
  EXPECT_EQ(status("/v1/jobs", (2 << 20) + 1), 413);
}

TEST(ServerEdgesTest, ConnectionsTheProcessAndTheBuildAreAmongTheMetrics) {
  TestImageService service;
  auto edges = ServerEdges::Start(AnyPorts(), service, {});
  ASSERT_TRUE(edges.ok()) << edges.status();
  HttpTestClient one((*edges)->http_port()), two((*edges)->http_port()), admin((*edges)->admin_port());
  for (HttpTestClient* client : {&one, &two}) ASSERT_EQ(client->Call("GET", "/livez").status, 200);
  const std::string metrics = admin.Call("GET", "/metrics").body;
  for (const char* line :
       {"\ntessera_connections{listener=\"http\"} 2\n", "\ntessera_connections{listener=\"admin\"} 1\n",
        "\ntessera_connections_accepted_total{listener=\"http\"} 2\n",
        "\ntessera_connections_closed_idle_total{listener=\"http\"} 0\n",
        "\ntessera_connections_refused_total{listener=\"admin\"} 0\n", "\nprocess_open_fds ",
        "\ntessera_build_info{version=\"", "\nprocess_resident_memory_bytes ", "\nprocess_cpu_seconds_total "}) {
    EXPECT_TRUE(absl::StrContains(metrics, line)) << line << metrics;
  }
}

TEST(ServerEdgesTest, AListenerThatIsOffHasNoPort) {
  TestImageService service;
  ServerConfig config = AnyPorts();
  config.listen.grpc.enabled = config.listen.admin.enabled = false;
  auto edges = ServerEdges::Start(config, service, {});
  ASSERT_TRUE(edges.ok()) << edges.status();
  EXPECT_EQ((*edges)->grpc_port(), 0);
  EXPECT_EQ((*edges)->admin_port(), 0);
}

TEST(ServerEdgesTest, TheApiAnswersHealthAndMetricsWithoutAKeyAndUnderAnyName) {
  TestImageService service;
  const TestFolder folder;
  ServerConfig config = AnyPorts();
  config.keys_file = KeysFile(folder, "keys.txt").path;
  config.hosts = {"images.example"};
  config.api_metrics = true;
  auto edges = ServerEdges::Start(config, service, {});
  ASSERT_TRUE(edges.ok()) << edges.status();
  const auto ask = [&](const std::string& path) {
    HttpTestClient client((*edges)->http_port());
    client.Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: 10.1.2.3:8080\r\n\r\n"));
    return client.ReadResponse();
  };
  EXPECT_EQ(ask("/health").status, 200);
  const TestResponse metrics = ask("/metrics");
  EXPECT_EQ(metrics.status, 200);
  EXPECT_EQ(metrics.Header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const char* name : {"tessera_queued_jobs{", "tessera_requests_total{", "tessera_build_info{"}) {
    EXPECT_TRUE(absl::StrContains(metrics.body, name)) << name;
    EXPECT_TRUE(absl::StrContains(HttpTestClient((*edges)->admin_port()).Call("GET", "/metrics").body, name)) << name;
  }
  EXPECT_EQ(ask("/readyz").status, 200);
  EXPECT_EQ(ask("/v1/models").status, 421);
  service.SetReady(absl::UnavailableError("no group is ready"));
  EXPECT_EQ(ask("/health").status, 503);
}

TEST(ServerEdgesTest, TheApiHasNoMetricsUnlessConfiguredAndNoHealthIfThatIsOff) {
  TestImageService service;
  ServerConfig config = AnyPorts();
  config.api_health = false;
  auto edges = ServerEdges::Start(config, service, {});
  ASSERT_TRUE(edges.ok()) << edges.status();
  for (const char* path : {"/health", "/metrics"}) {
    EXPECT_EQ(HttpTestClient((*edges)->http_port()).Call("GET", path).status, 404) << path;
  }
}

TEST(ServerEdgesTest, AProbeNeedsAnAdminKeyWhereThereAreSomeAndNothingElseOfAdminDoes) {
  TestImageService service;
  const TestFolder folder;
  const auto [api_keys, api_secret] = KeysFile(folder, "keys.txt");
  const auto [admin_keys, admin_secret] = KeysFile(folder, "admin-keys.txt");
  ServerConfig config = AnyPorts();
  config.keys_file = api_keys;
  config.admin_keys_file = admin_keys;
  auto edges = ServerEdges::Start(config, service, {});
  ASSERT_TRUE(edges.ok()) << edges.status();
  const auto probe = [&](const std::string& secret) {
    return HttpTestClient((*edges)->admin_port())
        .Call("GET", "/probe", "", {{"Authorization", absl::StrCat("Bearer ", secret)}})
        .status;
  };
  const TestResponse without = HttpTestClient((*edges)->admin_port()).Call("GET", "/probe");
  EXPECT_EQ(without.status, 401);
  EXPECT_TRUE(absl::StrContains(without.body, "needs a key of admin_keys_file")) << without.body;
  EXPECT_EQ(probe(api_secret), 401) << "a caller of the API is no operator";
  EXPECT_EQ(probe(admin_secret), 200);
  const auto usage = [&](const std::string& secret, const std::string& query = "") {
    return HttpTestClient((*edges)->admin_port())
        .Call("GET", "/v1/usage" + query, "", {{"Authorization", absl::StrCat("Bearer ", secret)}})
        .status;
  };
  EXPECT_EQ(usage(api_secret), 401) << "it shows all keys";
  EXPECT_EQ(usage(admin_secret), 200);
  EXPECT_EQ(usage(admin_secret, "?kee=a"), 400);
  EXPECT_EQ(usage(admin_secret, "?until=2026-02-30"), 400);
  EXPECT_EQ(usage(admin_secret, "?since=2026-02-02&until=2026-02-01"), 400);
  for (const char* path : {"/livez", "/readyz", "/metrics"}) {
    EXPECT_EQ(HttpTestClient((*edges)->admin_port()).Call("GET", path).status, 200) << path;
  }
  const TestResponse models = HttpTestClient((*edges)->http_port())
                                  .Call("GET", "/v1/models", "", {{"Authorization", "Bearer " + admin_secret}});
  EXPECT_EQ(models.status, 401) << "an operator is no caller of the API";
}

TEST(ServerEdgesTest, BeyondLoopbackAProbeIsRefusedWithoutAdminKeysAndTheErrorSaysHow) {
  TestImageService service;
  ServerConfig config = AnyPorts();
  config.listen.admin.address = "0.0.0.0";
  auto edges = ServerEdges::Start(config, service, {});
  ASSERT_TRUE(edges.ok()) << edges.status();
  const TestResponse refused = HttpTestClient((*edges)->admin_port()).Call("GET", "/probe");
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(HttpTestClient((*edges)->admin_port()).Call("GET", "/v1/usage").status, 403);
  EXPECT_TRUE(absl::StrContains(refused.body, "set admin_keys_file to a file")) << refused.body;
  for (const char* path : {"/livez", "/readyz", "/metrics"}) {
    EXPECT_EQ(HttpTestClient((*edges)->admin_port()).Call("GET", path).status, 200) << path;
  }
}

TEST(ServerEdgesTest, DrainingEndsTheApiAndLeavesAdmin) {
  TestImageService service;
  auto edges = ServerEdges::Start(AnyPorts(), service, {});
  ASSERT_TRUE(edges.ok()) << edges.status();
  HttpTestClient idle((*edges)->http_port());
  ASSERT_EQ(idle.Call("GET", "/livez").status, 200);
  (*edges)->Drain(absl::Seconds(60));
  EXPECT_TRUE(idle.WaitForEnd());
  EXPECT_EQ(HttpTestClient((*edges)->admin_port()).Call("GET", "/livez").status, 200);
}

TEST(ServerEdgesTest, TheInputCheckOfTheConfigurationJudgesFromTheNextCallOn) {
  const TestFolder folder;
  TestImageService service;
  ScriptedWebServer judge(Sending(OkAnswer(R"({"allowed": false})")));
  ServerConfig config = AnyPorts();
  auto edges = ServerEdges::Start(config, service, {});
  ASSERT_TRUE(edges.ok()) << edges.status();
  HttpTestClient client((*edges)->http_port());
  const auto generate = [&client] { return client.Call("POST", "/v1/images/generations", R"({"prompt":"a"})").status; };
  EXPECT_EQ(generate(), 200);
  config.input_check = {.url = absl::StrCat("http://127.0.0.1:", judge.port(), "/"),
                        .timeout = absl::Minutes(1),
                        .headers_file = folder.Write("headers", "X-Secret: abc\n")};
  EXPECT_TRUE((*edges)->Reload(config).ok());
  EXPECT_EQ(generate(), 400);
  ASSERT_EQ(judge.Requests().size(), 1u);
  EXPECT_TRUE(absl::StrContains(judge.Requests()[0].head, "X-Secret: abc\r\n"));
  folder.Write("headers", "no header\n");
  EXPECT_FALSE((*edges)->Reload(config).ok());
  EXPECT_EQ(generate(), 503) << "a broken file refuses until it is fixed";
  config.input_check = {};
  EXPECT_TRUE((*edges)->Reload(config).ok());
  EXPECT_EQ(generate(), 200);
}

TEST(ServerEdgesTest, AHeadersFileOfTheInputCheckThatIsMissingIsAnErrorOfTheStart) {
  TestImageService service;
  ServerConfig config = AnyPorts();
  config.input_check = {.url = "http://localhost:9000/", .headers_file = "/nowhere/headers"};
  const auto edges = ServerEdges::Start(config, service, {});
  EXPECT_EQ(edges.status().message(), "input_check.headers_file cannot be read");
}

TEST(ServerEdgesTest, APortThatIsTakenAndAFileThatIsMissingAreErrors) {
  TestImageService service;
  auto first = ServerEdges::Start(AnyPorts(), service, {});
  ASSERT_TRUE(first.ok()) << first.status();
  ServerConfig config = AnyPorts();
  config.listen.http.port = (*first)->http_port();
  EXPECT_EQ(ServerEdges::Start(config, service, {}).status().code(), absl::StatusCode::kUnavailable);
  config = AnyPorts();
  config.listen.grpc.port = (*first)->grpc_port();
  EXPECT_EQ(ServerEdges::Start(config, service, {}).status().code(), absl::StatusCode::kUnavailable);
  config = AnyPorts();
  config.keys_file = "no-such-keys";
  EXPECT_EQ(ServerEdges::Start(config, service, {}).status().code(), absl::StatusCode::kNotFound);
  config = AnyPorts();
  config.admin_keys_file = "no-such-keys";
  EXPECT_EQ(ServerEdges::Start(config, service, {}).status().code(), absl::StatusCode::kNotFound);
  config = AnyPorts();
  config.tls = {.certificate_chain = "no.pem", .private_key = "no.key"};
  EXPECT_EQ(ServerEdges::Start(config, service, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tessera::server
