#include "tests/front/child_process.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace tessera {
namespace {

TEST(ChildProcessTest, ThatHasEndedIsWaitedForAndKilledAgainWithoutHarm) {
  ChildProcess process({.arguments = {"/bin/sh", "-c", "exit 7"}, .folder = "/", .environment = {}});
  EXPECT_EQ(process.Wait(), 7);
  process.Signal(SIGKILL);
  EXPECT_EQ(process.Wait(), 7);
}

TEST(ChildProcessTest, ThatWasKilledReportsTheSignal) {
  ChildProcess process({.arguments = {"/bin/sh", "-c", "echo; exec sleep 600"}, .folder = "/", .environment = {}});
  ASSERT_TRUE(process.WaitForOutput("\n"));
  process.Signal(SIGKILL);
  EXPECT_EQ(process.Wait(), 1000 + SIGKILL);
}

}  // namespace
}  // namespace tessera
