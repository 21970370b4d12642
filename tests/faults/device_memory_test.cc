// Tests `tessera serve` with groups on devices with separate memory, as reported by fake workers. For the fake model in
// bf16, an image of 64x64 takes about 3,080 bytes and one of 256x256 about 12,800; 2,430 of these do not depend on the
// size. In fp32 they take twice as much.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kLarge[] = R"({"prompt": "apple", "size": "256x256"})";

class DeviceMemoryTest : public ::testing::Test {
 protected:
  TestServer& Make(const std::string& script, const std::string& group = "{model: TINY, devices: [cuda:0]}") {
    server_ =
        std::make_unique<TestServer>(TestServerOptions{.worker = FAKE_WORKER, .script = script, .groups = {group}});
    return *server_;
  }

  void ExpectRefused() {
    const TestResponse refused = server_->Call("POST", "/v1/jobs", kLarge);
    EXPECT_EQ(refused.status, 400) << refused.body;
    EXPECT_THAT(refused.body, HasSubstr("an image of 256x256 needs about"));
    EXPECT_THAT(refused.body, HasSubstr("invalid_request_error"));
  }

  std::unique_ptr<TestServer> server_;
};

TEST_F(DeviceMemoryTest, AJobThatTheDeviceCouldNeverHoldIsRefused) {
  TestServer& server = Make("memory=4096 memory-free=1");
  ASSERT_TRUE(server.Start());
  server.WaitUntilReady();
  ExpectRefused();
  EXPECT_EQ(server.Ended(server.Submit("apple")), "done") << "others may give back what they have";
}

TEST_F(DeviceMemoryTest, TheHostsMemoryIsNoDevices) {
  TestServer& server = Make("memory=4096", "{model: TINY}");
  ASSERT_TRUE(server.Start());
  server.WaitUntilReady();
  const TestResponse accepted = server.Call("POST", "/v1/jobs", kLarge);
  EXPECT_EQ(accepted.status, 202) << accepted.body;
}

TEST_F(DeviceMemoryTest, TheRankWithTheLeastMemoryCountsForItsGroup) {
  TestServer& server =
      Make("rank1:memory=2048 memory=1000000", "{model: TINY, devices: [cuda:0, cuda:1], layout: cfg=2}");
  ASSERT_TRUE(server.Start());
  server.WaitUntilReady();
  ExpectRefused();
}

TEST_F(DeviceMemoryTest, AJobThatWasAcceptedBeforeTheMemoryWasKnownFailsWithTheReason) {
  TestServer& server = Make("load=hang");
  ASSERT_TRUE(server.Start());
  const TestResponse accepted = server.Call("POST", "/v1/jobs", kLarge);
  ASSERT_EQ(accepted.status, 202) << accepted.body;
  const std::string job(boost::json::parse(accepted.body).at("id").as_string());
  server.Kill();
  server.options().script = "memory=4096";
  ASSERT_TRUE(server.Start());
  EXPECT_EQ(server.Ended(job), "failed");
  EXPECT_THAT(boost::json::serialize(server.Get(job)), HasSubstr("an image of 256x256 needs about"));
  EXPECT_EQ(server.Ended(server.Submit("apple")), "done");
}

TEST_F(DeviceMemoryTest, AnAdoptedGroupKeepsItsBounds) {
  TestServer& server = Make("memory=4096");
  ASSERT_TRUE(server.Start());
  server.WaitUntilReady();
  const std::vector<pid_t> workers = server.ReplaceBy([&] {
    server.Kill();
    ASSERT_TRUE(server.Start());
  });
  EXPECT_EQ(server.Workers(), workers);
  ExpectRefused();
}

// The workers' batches differ by more than fp32 explains, so the log shows whether the server tried a batch.
TEST_F(DeviceMemoryTest, BatchesAreOfWhatIsFreeAndRanksOfOneDeviceShareIt) {
  const auto shares = [&](const std::string& free, const std::string& group) {
    TestServer& server = Make(absl::StrCat("batch-drift memory=1000000 memory-free=", free), group);
    EXPECT_TRUE(server.Start());
    server.WaitUntilReady();
    EXPECT_EQ(server.Ended(server.Submit("apple", R"(, "n": 4)")), "done");
    server.process().Signal(SIGTERM);  // a server that has ended has written its whole log
    EXPECT_EQ(server.process().Wait(), 0);
    return absl::StrContains(server.process().errors(), "change each other");
  };
  EXPECT_FALSE(shares("10000", "{model: TINY, dtype: fp32, devices: [cuda:0]}"));
  EXPECT_TRUE(shares("13000", "{model: TINY, dtype: fp32, devices: [cuda:0]}"));
  // Each of the two ranks has half of an image's tokens.
  EXPECT_FALSE(shares("12000", "{model: TINY, dtype: fp32, devices: [cuda:0], layout: ulysses=2}"));
  EXPECT_TRUE(shares("12000", "{model: TINY, dtype: fp32, devices: [cuda:0, cuda:1], layout: ulysses=2}"));
}

TEST_F(DeviceMemoryTest, MetricsTellWhatEveryRankSaidOfItsDevice) {
  server_ = std::make_unique<TestServer>(
      TestServerOptions{.worker = FAKE_WORKER,
                        .script = "rank1:device-memory=9,8,7,6 device-memory=5,4,3,2",
                        .groups = {"{model: TINY, devices: [cuda:0, cuda:1], layout: cfg=2, warmup: [64x128]}"},
                        .admin = "{port: 0}"});
  ASSERT_TRUE(server_->Start());
  server_->WaitUntilReady();
  const std::string text = HttpTestClient(server_->admin_port()).Call("GET", "/metrics").body;
  const auto line = [](const char* kind, const char* rank, int bytes) {
    return HasSubstr(absl::StrCat("tessera_device_memory_bytes{group=\"tiny-0\",kind=\"", kind, "\",rank=\"", rank,
                                  "\"} ", bytes, "\n"));
  };
  EXPECT_THAT(text, AllOf(line("total", "0", 5), line("free", "0", 4), line("used", "0", 3), line("cached", "0", 2)));
  EXPECT_THAT(text, AllOf(line("total", "1", 9), line("free", "1", 8), line("used", "1", 7), line("cached", "1", 6)));
}

TEST_F(DeviceMemoryTest, AGroupThatCannotBeWarmIsNotReadyAndSaysWhy) {
  TestServer& server = Make("", "{model: TINY, warmup: [64x64, 4096x64]}");
  ASSERT_TRUE(server.Start());
  WaitUntil("refused", [&] { return server.Group(0).at("state").as_string() == "refused"; });
  EXPECT_THAT(std::string(server.Group(0).at("reason").as_string()), HasSubstr("its warm-up at 4096x64 failed: width"));
}

}  // namespace
}  // namespace tessera
