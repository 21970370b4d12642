// Runs KEDA's query for the number of servers on a real Prometheus, with two servers that share one queue. The result
// must be the queue, not twice the queue.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/faults/shared_servers.h"

namespace tessera {
namespace {

constexpr char kModel[] = "tiny";

// Returns the program that scripts/setup.sh --checks unpacks, or else the system's.
std::string PrometheusProgram() {
  for (const std::string path : {PROMETHEUS, "/usr/bin/prometheus"}) {
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

// Returns the query of the cluster's ScaledObject, for this test's model.
std::string KedaQuery() {
  std::ifstream file(SCALED_OBJECT);
  for (std::string line; std::getline(file, line);) {
    absl::string_view query = line;
    if (absl::ConsumePrefix(&query, "        query: ")) {
      return absl::StrReplaceAll(query, {{"\"emoji\"", absl::StrCat("\"", kModel, "\"")}});
    }
  }
  return "";
}

std::string Encoded(const std::string& text) {
  std::string encoded;
  for (const char c : text) absl::StrAppend(&encoded, "%", absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad2));
  return encoded;
}

class Prometheus {
 public:
  explicit Prometheus(const std::vector<uint16_t>& targets) {
    std::string config = "global: {scrape_interval: 200ms}\nscrape_configs:\n- job_name: tessera\n  static_configs:\n";
    for (const uint16_t port : targets) absl::StrAppend(&config, "  - targets: ['127.0.0.1:", port, "']\n");
    folder_.Write("prometheus.yml", config);
    process_ = std::make_unique<ChildProcess>(
        ChildOptions{.arguments = {PrometheusProgram(), "--config.file=prometheus.yml", "--storage.tsdb.path=data",
                                   "--web.listen-address=127.0.0.1:0"},
                     .folder = folder_.path(),
                     .environment = {{"GOMAXPROCS", "2"}}});
    WaitUntil("Prometheus listens", [&] {
      const std::string log = process_->errors();
      const size_t address = log.find("msg=\"Listening on\" address=127.0.0.1:");
      if (address == std::string::npos) return false;
      const size_t begin = log.find(':', address + sizeof("msg=\"Listening on\" address=") - 1) + 1;
      port_ = static_cast<uint16_t>(std::atoi(log.c_str() + begin));
      return port_ != 0;
    });
  }

  // Returns the single value of an instant query, if it has one.
  std::optional<double> Ask(const std::string& query) {
    HttpTestClient client(port_);
    const TestResponse response = client.Call("GET", "/api/v1/query?query=" + Encoded(query), "", {});
    if (response.status != 200) return std::nullopt;
    const boost::json::value answer = boost::json::parse(response.body);
    const boost::json::array& series = answer.at("data").at("result").as_array();
    double value = 0;
    if (series.size() != 1 || !absl::SimpleAtod(std::string(series[0].at("value").at(1).as_string()), &value)) {
      return std::nullopt;
    }
    return value;
  }

 private:
  TestFolder folder_;
  std::unique_ptr<ChildProcess> process_;
  uint16_t port_ = 0;
};

// Returns the value that the server itself reports.
double Gauge(TestServer& server) {
  HttpTestClient client(server.admin_port());
  const std::string name = absl::StrCat("tessera_queued_device_seconds{model=\"", kModel, "\"} ");
  for (const absl::string_view line : absl::StrSplit(client.Call("GET", "/metrics", "", {}).body, '\n')) {
    absl::string_view value = line;
    double seconds = 0;
    if (absl::ConsumePrefix(&value, name) && absl::SimpleAtod(value, &seconds)) return seconds;
  }
  return -1;
}

TEST(SharedQueueMetricsTest, TheQueryOfKedaIsTheQueueAndNotTwiceTheQueue) {
  ASSERT_NE(PrometheusProgram(), "") << "scripts/setup.sh --checks unpacks it";
  const std::string query = KedaQuery();
  ASSERT_TRUE(absl::StartsWith(query, "max(")) << query;
  PostgresCluster cluster(/*syncs=*/false);
  SharedServers servers(cluster);
  std::vector<uint16_t> ports;
  for (int i = 0; i < 2; ++i) {
    // No group ever becomes ready, so the queue does not change.
    TestServer& server = servers.Add({.worker = FAKE_WORKER,
                                      .script = "load=hang",
                                      .groups = {"{model: TINY, layout: serial}"},
                                      .settings = "ready_when: durable\n",
                                      .admin = "{port: 0}"});
    ASSERT_TRUE(server.Start());
    server.WaitUntilReady();
    ports.push_back(server.admin_port());
  }
  Prometheus prometheus(ports);
  servers.at(0).Submit("red apple");
  WaitUntil("one job is seen", [&] { return Gauge(servers.at(0)) > 0 && Gauge(servers.at(1)) > 0; });
  const double one = Gauge(servers.at(0));
  for (size_t i = 0; i < 9; ++i) servers.at(i % 2).Submit("red apple");
  const auto is_ten = [&](std::optional<double> seconds) {
    return seconds.has_value() && std::abs(*seconds - 10 * one) < 1e-6 * one;
  };
  for (size_t i = 0; i < 2; ++i) WaitUntil("each reports ten jobs", [&] { return is_ten(Gauge(servers.at(i))); });
  WaitUntil("so does the query", [&] { return is_ten(prometheus.Ask(query)); });
  // Prometheus scrapes both servers, so a sum would be twice the queue.
  WaitUntil("twice in all", [&] {
    const std::optional<double> sum = prometheus.Ask(absl::StrReplaceAll(query, {{"max(", "sum("}}));
    return sum.has_value() && is_ten(*sum / 2);
  });
  // A scrape that took too long leaves no value until the next one.
  WaitUntil("the query is the queue still", [&] { return is_ten(prometheus.Ask(query)); });
}

}  // namespace
}  // namespace tessera
