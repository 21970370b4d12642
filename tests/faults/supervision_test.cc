// Crashes `tessera serve`. Its supervisor starts the next server, which must find and finish the work.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "tests/faults/test_server.h"

namespace tessera {
namespace {

TestServerOptions Options() {
  return {.worker = FAKE_WORKER, .script = "", .groups = {"{model: TINY, layout: serial}"}};
}

// Starts a server and waits until it has served a job.
void StartWarm(TestServer& server) {
  ASSERT_TRUE(server.Start());
  server.WaitUntilReady();
  EXPECT_EQ(server.Ended(server.Submit("warm up")), "done");
  ASSERT_EQ(server.Workers().size(), 1u);
}

TEST(SupervisionTest, ACrashedServerIsBackOnItsPortsWithItsWorkersAndItsJobs) {
  TestServer server(Options());
  ASSERT_NO_FATAL_FAILURE(StartWarm(server));
  std::vector<std::string> jobs;
  for (int i = 0; i < 5; ++i) jobs.push_back(server.Submit("apple", R"(, "num_inference_steps": 500)"));
  const std::vector<pid_t> workers = server.ReplaceBy([&] { server.CrashServingProcess(SIGABRT); });
  for (const std::string& job : jobs) EXPECT_EQ(server.Ended(job), "done");
  EXPECT_EQ(server.Workers(), workers);
  EXPECT_EQ(server.Terminate(), 0);
}

TEST(SupervisionTest, CrashesOfEveryServerInTurnLoseNothing) {
  TestServer server(Options());
  ASSERT_NO_FATAL_FAILURE(StartWarm(server));
  const std::string job = server.Submit("apple", R"(, "num_inference_steps": 1000)");
  for (int crash = 0; crash < 4; ++crash) {
    const std::vector<pid_t> workers = server.ReplaceBy([&] { server.CrashServingProcess(SIGABRT); });
    EXPECT_EQ(server.Workers(), workers);
  }
  EXPECT_EQ(server.Ended(job), "done");
  server.WaitUntilLogged("signal 6");
  EXPECT_EQ(server.Terminate(), 0);
}

TEST(SupervisionTest, TheServingProcessEndsWithItsSupervisorAndTheNextServerAdopts) {
  TestServer server(Options());
  ASSERT_NO_FATAL_FAILURE(StartWarm(server));
  const std::vector<pid_t> workers = server.ReplaceBy([&] {
    const std::optional<pid_t> serving = server.ServingProcess();
    ASSERT_TRUE(serving.has_value());
    server.Kill();
    EXPECT_TRUE(WaitUntilGone(*serving));
    ASSERT_TRUE(server.Start());
  });
  EXPECT_EQ(server.Ended(server.Submit("again")), "done");
  EXPECT_EQ(server.Workers(), workers);
  EXPECT_EQ(server.Terminate(), 0);
}

TEST(SupervisionTest, WithoutASupervisorACrashEndsIt) {
  TestServer server(Options());
  server.options().arguments = {"--no-supervisor"};
  ASSERT_TRUE(server.Start());
  server.process().Signal(SIGABRT);
  ASSERT_TRUE(WaitUntilGone(server.process().pid()));
  EXPECT_EQ(server.Terminate(), 1000 + SIGABRT);
}

}  // namespace
}  // namespace tessera
