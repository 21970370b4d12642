// Checks that repeated bad requests do not increase the memory of a real server.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/faults/holdings.h"
#include "tests/faults/test_server.h"
#include "tests/faults/trend.h"
#include "tests/http/bad_bodies.h"

namespace tessera {
namespace {

// A leak of some hundred bytes per request would be ten times as much.
constexpr double kResolutionMib = 0.5;
constexpr int kFirstPasses = 10;  // pools and arenas grow to their final size during these
constexpr int kPasses = 3 * kTrendBlocks;

TEST(ResidentMemoryTest, DoesNotGrowByBadRequests) {
  TestServer server({.fake_workers = true, .groups = {"{model: TINY}"}});
  server.options().worker = FAKE_WORKER;
  server.options().arguments = {"--no-supervisor"};
  ASSERT_TRUE(server.Start());
  server.WaitUntilReady();
  std::vector<BadBody> table = ReadBadBodies();
  // Some bodies are valid for the fake worker's model.
  std::erase_if(table, [&](const BadBody& row) {
    return server.Call("POST", "/v1/images/generations", row.body).status != row.status;
  });
  ASSERT_GE(table.size(), 400u);
  std::vector<Sample> samples;
  for (int pass = 0; pass < kFirstPasses + kPasses; ++pass) {
    HttpTestClient client(server.port());
    for (const BadBody& row : table) {
      ASSERT_EQ(client.Call("POST", "/v1/images/generations", row.body).status, row.status) << row.body;
    }
    if (pass < kFirstPasses) continue;
    const std::optional<Holdings> holdings = HoldingsOf(server.process().pid());
    ASSERT_TRUE(holdings.has_value());
    samples.push_back({.seconds = static_cast<double>(pass), .value = holdings->resident_mib});
  }
  const Trend trend = TrendOf(samples);
  EXPECT_FALSE(trend.Grows(kResolutionMib)) << trend.slope << " MiB for each pass of " << table.size() << " requests";
  std::printf("%.1f MiB, %+.4f MiB a pass (%+.4f to %+.4f)\n", trend.level, trend.slope, trend.least, trend.most);
}

}  // namespace
}  // namespace tessera
