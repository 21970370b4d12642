#include "client/text_reporter.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(TextReporterTest, RoundsTheTimeLeftUpToTheSecond) {
  EXPECT_EQ(DurationText(0), "0s");
  EXPECT_EQ(DurationText(-1), "0s");
  EXPECT_EQ(DurationText(0.1), "1s");
  EXPECT_EQ(DurationText(59.5), "1m00s");
  EXPECT_EQ(DurationText(3599.5), "1h00m");
  EXPECT_EQ(DurationText(7384), "2h03m");
}

}  // namespace
}  // namespace tessera
