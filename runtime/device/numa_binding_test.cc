#include "runtime/device/numa_binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/made_up_host.h"

namespace tessera::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<int> Allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.push_back(i);
  }
  return processors;
}

// A thread that exists before others are bound, and reports afterwards where it may run.
class EarlierThread {
 public:
  std::vector<int> Join() {
    {
      const std::lock_guard lock(mutex_);
      asked_ = true;
    }
    wake_.notify_one();
    thread_.join();
    return allowed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool asked_ = false;
  std::vector<int> allowed_;
  std::thread thread_{[this] {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return asked_; });
    allowed_ = Allowed();
  }};
};

// A host of two nodes with a GPU each. The first node has one of the processors that this test may use, the second has
// none.
class NumaBindingTest : public testing::Test {
 protected:
  NumaBindingTest() : before_(Allowed()), near_(before_.back()) {
    EXPECT_EQ(sched_getaffinity(0, sizeof(mask_), &mask_), 0);
    host_.AddNode(0, absl::StrCat(near_, ",", 60000), near_, 0);
    host_.AddNode(1, "50000-50003", 50000, 1);
    host_.AddPciDevice("pci0000:10/0000:10:01.0/0000:11:00.0", "0");
    host_.AddPciDevice("pci0000:80/0000:80:01.0/0000:81:00.0", "1");
  }
  ~NumaBindingTest() override {
    EXPECT_EQ(sched_setaffinity(0, sizeof(mask_), &mask_), 0);
    syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
    unsetenv("TESSERA_NUMA");
  }

  MadeUpHost host_;
  cpu_set_t mask_;
  const std::vector<int> before_;
  const int near_;
};

TEST_F(NumaBindingTest, EveryThreadRunsOnTheNodesProcessorsThatItMayUse) {
  EarlierThread earlier;
  const std::string said = BindNearGpu("0000:11:00.0", host_.root());
  EXPECT_THAT(
      said, StartsWith(absl::StrCat("threads are bound to NUMA node 0 of GPU 0000:11:00.0 (processors ", near_, ")")));
  EXPECT_THAT(Allowed(), ElementsAre(near_));
  EXPECT_THAT(earlier.Join(), ElementsAre(near_));
  std::vector<int> of_later;
  std::thread([&] { of_later = Allowed(); }).join();
  EXPECT_THAT(of_later, ElementsAre(near_));
}

TEST_F(NumaBindingTest, TheNodesMemoryIsPreferredOrTheLogSaysThatItIsNot) {
  const std::string said = BindNearGpu("0000:11:00.0", host_.root());
  int mode = -1;
  std::array<unsigned long, 16> nodes = {};
  const bool readable = syscall(SYS_get_mempolicy, &mode, nodes.data(), 1024UL, nullptr, 0UL) == 0;
  if (readable && mode == MPOL_PREFERRED) {
    EXPECT_EQ(nodes[0], 1UL);
    EXPECT_EQ(said.find("cannot be preferred"), said.npos);
  } else {
    EXPECT_THAT(said, HasSubstr("its memory cannot be preferred here"));
  }
}

TEST_F(NumaBindingTest, WhereNoneOfTheNodesProcessorsIsAllowedNothingIsBound) {
  EXPECT_EQ(BindNearGpu("0000:81:00.0", host_.root()),
            "threads are not bound: none may run on NUMA node 1 of GPU 0000:81:00.0");
  EXPECT_EQ(Allowed(), before_);
}

TEST_F(NumaBindingTest, WhereTheNodeIsNotKnownNothingIsBound) {
  EXPECT_EQ(BindNearGpu("0000:99:00.0", host_.root()),
            "threads are not bound: the NUMA node of GPU 0000:99:00.0 is not known");
  EXPECT_EQ(Allowed(), before_);
}

TEST_F(NumaBindingTest, ItCanBeTurnedOff) {
  setenv("TESSERA_NUMA", "off", 1);
  EXPECT_EQ(BindNearGpu("0000:11:00.0", host_.root()), "threads are not bound: TESSERA_NUMA is off");
  EXPECT_EQ(Allowed(), before_);
}

}  // namespace
}  // namespace tessera::runtime
