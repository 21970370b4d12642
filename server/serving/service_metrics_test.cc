#include "server/serving/service_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tessera::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ServiceMetricsTest, ReportTheMemoryOfEveryRanksDeviceThatIsKnown) {
  ServerInfo info;
  info.groups.push_back({.name = "flux-0"});
  info.groups.back().device_memories = {control::DeviceMemory{.total = 80, .free = 40, .used = 20, .cached = 10},
                                        std::nullopt, control::DeviceMemory{.total = 90}};
  info.groups.push_back({.name = "on-cpu"});
  const std::string text = ServiceMetrics().Text(info);
  const auto line = [](const char* rank, const char* kind, const char* bytes) {
    return HasSubstr(std::string("tessera_device_memory_bytes{group=\"flux-0\",kind=\"") + kind + "\",rank=\"" + rank +
                     "\"} " + bytes + "\n");
  };
  EXPECT_THAT(text, AllOf(line("0", "total", "80"), line("0", "free", "40"), line("0", "used", "20"),
                          line("0", "cached", "10"), line("2", "total", "90"), line("2", "used", "0")));
  EXPECT_THAT(text, Not(HasSubstr("rank=\"1\"")));
  EXPECT_THAT(text, Not(HasSubstr("tessera_device_memory_bytes{group=\"on-cpu\"")));
}

TEST(ServiceMetricsTest, CountTheUsageOfNamedKeysAndOfAllOthersTogether) {
  ServiceMetrics metrics;
  const KeyUsage usage = {.key = "alice", .model = "tiny", .images = 1, .steps = 8, .device_seconds = 0.5};
  metrics.CountUsage(usage);
  EXPECT_THAT(metrics.Text({}), Not(HasSubstr("alice"))) << "nothing is counted by key unless it is switched on";
  metrics.NameKeys({"alice"});
  std::set<std::string> many;
  for (size_t i = 0; i < 2 * kMaxNamedKeys; ++i) many.insert("key-" + std::to_string(1000 + i));
  metrics.NameKeys(many);
  for (const std::string& key : many) metrics.CountUsage({.key = key, .model = "tiny", .images = 1});
  metrics.CountUsage(usage);
  metrics.CountUsage(usage);
  for (const double wrong : {std::nan(""), HUGE_VAL, -1.0}) {
    metrics.CountUsage({.key = "alice", .model = "tiny", .device_seconds = wrong});
  }
  const std::string text = metrics.Text({});
  EXPECT_THAT(text, AllOf(HasSubstr("tessera_usage_images_total{key=\"alice\",model=\"tiny\"} 2\n"),
                          HasSubstr("tessera_usage_steps_total{key=\"alice\",model=\"tiny\"} 16\n"),
                          HasSubstr("tessera_usage_device_seconds_total{key=\"alice\",model=\"tiny\"} 1\n"),
                          HasSubstr("tessera_usage_images_total{key=\"key-1098\",model=\"tiny\"} 1\n"),
                          HasSubstr("tessera_usage_images_total{key=\"other\",model=\"tiny\"} 101\n")));
  EXPECT_THAT(text, Not(HasSubstr("key-1099")));
}

TEST(ServiceMetricsTest, CountTheNodesInEachState) {
  ServerInfo info;
  EXPECT_THAT(ServiceMetrics().Text(info),
              AllOf(HasSubstr("tessera_nodes{state=\"joined\"} 0\n"), HasSubstr("tessera_nodes{state=\"lost\"} 0\n")));
  info.nodes = {{.name = "node-a"}, {.name = "node-b", .state = NodeState::kLost}, {.name = "node-c"}};
  EXPECT_THAT(ServiceMetrics().Text(info),
              AllOf(HasSubstr("tessera_nodes{state=\"joined\"} 2\n"), HasSubstr("tessera_nodes{state=\"lost\"} 1\n")));
}

}  // namespace
}  // namespace tessera::server
