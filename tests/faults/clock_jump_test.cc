// A server whose calendar jumps while it works.
#include <gmock/gmock.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

class ClockJumpTest : public ::testing::Test {
 protected:
  ClockJumpTest() : server_({.worker = FAKE_WORKER, .groups = {"{model: TINY, layout: \"cfg=2\"}"}}) {
    server_.Write("clock", std::string(sizeof(int64_t), '\0'));
    server_.options().orders = absl::StrCat("step-time=20 gate=", server_.folder(), "/gate");
    server_.options().environment = {{"LD_PRELOAD", JUMPING_CLOCK_LIBRARY},
                                     {"JUMPING_CLOCK", server_.folder() + "/clock"}};
  }

  // So far from the machine's own calendar. The file is mapped by others and must stay as long as it is.
  void JumpTo(absl::Duration far) {
    const int64_t seconds = absl::ToInt64Seconds(far);
    std::fstream file(server_.folder() + "/clock", std::ios::binary | std::ios::in | std::ios::out);
    file.write(reinterpret_cast<const char*>(&seconds), sizeof(seconds));
    EXPECT_TRUE(file.flush());
  }

  absl::Duration FarAway() {
    return absl::FromUnixSeconds(server_.Get(server_.Submit("late")).at("created_at").as_int64()) - absl::Now();
  }

  TestServer server_;
};

TEST_F(ClockJumpTest, EndsNoJobNoWorkerAndNoWait) {
  ASSERT_TRUE(server_.Start());
  server_.WaitUntilReady();
  EXPECT_EQ(server_.Ended(server_.Submit("warm up")), "done");
  const std::vector<pid_t> workers = server_.Workers();
  for (const absl::Duration far : {absl::Hours(24 * 365), -absl::Hours(24 * 365)}) {
    // One whose first step shows no progress until the gate opens, and one that could wait for a quarter of an hour.
    const std::string running = server_.Submit("gated apple", R"(, "num_inference_steps": 20)");
    const std::string patient = server_.Submit("pear", R"(, "deadline_ms": 900000)");
    WaitUntil("a job that runs", [&] { return server_.StatusOf(running) == "running"; });
    // Whoever looks at the clock looks before and after; absl::Now asks the system every two seconds.
    absl::SleepFor(absl::Milliseconds(500));
    JumpTo(far);
    absl::SleepFor(absl::Seconds(3));
    server_.Write("gate", "");
    EXPECT_EQ(server_.Ended(running), "done");
    EXPECT_EQ(server_.Ended(patient), "done");
    std::filesystem::remove(server_.folder() + "/gate");
    EXPECT_EQ(server_.Call("GET", "/readyz").status, 200);
    EXPECT_EQ(server_.Call("GET", absl::StrCat("/v1/jobs/", running)).status, 200) << "its retention is not over";
  }
  EXPECT_EQ(server_.Workers(), workers);
  EXPECT_EQ(server_.Group().at("restarts").as_int64(), 0);
  EXPECT_EQ(server_.Terminate(), 0);
}

TEST_F(ClockJumpTest, IsSeenByTheServerAtItsNextStart) {
  JumpTo(absl::Hours(24 * 365));
  ASSERT_TRUE(server_.Start());
  EXPECT_GT(FarAway(), absl::Hours(24 * 364)) << "the clock of these tests does not jump";
  EXPECT_EQ(server_.Terminate(), 0);
}

}  // namespace
}  // namespace tessera
