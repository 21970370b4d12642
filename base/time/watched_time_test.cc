#include "base/time/watched_time.h"

#include <gtest/gtest.h>

namespace tessera::base {
namespace {

TEST(WatchedTimeTest, CountsTheTimeBetweenLooksUpToTheLongestGap) {
  WatchedTime time(absl::Seconds(1));
  EXPECT_EQ(time.LookAt(absl::Seconds(100)), absl::ZeroDuration());
  EXPECT_EQ(time.LookAt(absl::Seconds(100.25)), absl::Seconds(0.25));
  EXPECT_EQ(time.LookAt(absl::Seconds(101)), absl::Seconds(1));
  EXPECT_EQ(time.LookAt(absl::Seconds(121)), absl::Seconds(2)) << "there was no look for twenty seconds";
  EXPECT_EQ(time.LookAt(absl::Seconds(121.5)), absl::Seconds(2.5));
}

}  // namespace
}  // namespace tessera::base
