// Crashes `tessera serve`. Its supervisor starts the next server, which must find and finish the work.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "tests/faults/test_server.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

TestServerOptions Options() {
  return {.worker = FAKE_WORKER, .script = "", .groups = {"{model: TINY, layout: serial}"}};
}

// Starts a server and waits until it has served a job. Sets `worker` to its worker.
void StartWarm(TestServer& server, pid_t& worker) {
  ASSERT_TRUE(server.Start());
  server.WaitUntilReady();
  EXPECT_EQ(server.Ended(server.Submit("warm up")), "done");
  const std::vector<pid_t> workers = server.Workers();
  ASSERT_EQ(workers.size(), 1u);
  worker = workers[0];
}

TEST(SupervisionTest, ACrashedServerIsBackOnItsPortsWithItsWorkersAndItsJobs) {
  TestServer server(Options());
  pid_t worker = 0;
  ASSERT_NO_FATAL_FAILURE(StartWarm(server, worker));
  std::vector<std::string> jobs;
  for (int i = 0; i < 5; ++i) jobs.push_back(server.Submit("apple", R"(, "num_inference_steps": 500)"));
  server.CrashServingProcess(SIGABRT);
  for (const std::string& job : jobs) EXPECT_EQ(server.Ended(job), "done");
  EXPECT_THAT(server.Workers(), ElementsAre(worker));
  EXPECT_EQ(server.Terminate(), 0);
}

TEST(SupervisionTest, CrashesOfEveryServerInTurnLoseNothing) {
  TestServer server(Options());
  pid_t worker = 0;
  ASSERT_NO_FATAL_FAILURE(StartWarm(server, worker));
  const std::string job = server.Submit("apple", R"(, "num_inference_steps": 1000)");
  for (int crash = 0; crash < 4; ++crash) {
    server.CrashServingProcess(SIGABRT);
    server.WaitUntilReady();  // the workers have a server again
  }
  EXPECT_EQ(server.Ended(job), "done");
  EXPECT_THAT(server.Workers(), ElementsAre(worker));
  server.WaitUntilLogged("signal 6");
  EXPECT_EQ(server.Terminate(), 0);
}

TEST(SupervisionTest, TheServingProcessEndsWithItsSupervisorAndTheNextServerAdopts) {
  TestServer server(Options());
  pid_t worker = 0;
  ASSERT_NO_FATAL_FAILURE(StartWarm(server, worker));
  const std::optional<pid_t> serving = server.ServingProcess();
  ASSERT_TRUE(serving.has_value());
  server.Kill();
  EXPECT_TRUE(WaitUntilGone(*serving));
  ASSERT_TRUE(server.Start());
  EXPECT_EQ(server.Ended(server.Submit("again")), "done");
  EXPECT_THAT(server.Workers(), ElementsAre(worker));
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
