#include "base/threads/start_thread.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>

namespace tessera::base {
namespace {

// Exits with 0 if a thread can be started.
[[noreturn]] void StartWithOneProcess() {
  if (geteuid() == 0 && setuid(54321) != 0) std::_Exit(99);  // root has no such limit
  const rlimit limit = {1, 1};
  setrlimit(RLIMIT_NPROC, &limit);
  StartThread([] {}).join();
  std::_Exit(0);
}

TEST(StartThreadTest, AThreadThatCannotBeStartedEndsTheProcessAndNamesTheLimit) {
  EXPECT_EXIT(StartWithOneProcess(), ::testing::ExitedWithCode(kNoThreadExitCode),
              "a thread cannot be started .*\\(RLIMIT_NPROC\\) is 1, .*LimitNPROC=");
}

TEST(StartThreadTest, StartsAThread) {
  int ran = 0;
  StartThread([&] { ++ran; }).join();
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace tessera::base
