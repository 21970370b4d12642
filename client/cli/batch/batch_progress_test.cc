#include "client/cli/batch/batch_progress.h"

#include <gtest/gtest.h>

namespace tessera::client {
namespace {

TEST(BatchProgressTest, CountsWhatHadEndedBeforeAndDoesNotTakeItForSpeed) {
  const BatchProgress progress = {.total = 50000, .skipped = 40000, .ended = 100, .failed = 3, .images = 150};
  EXPECT_EQ(progress.Text(absl::Seconds(50)), "40100/50000 items, 3.00 images/s, 1h22m30s left, 3 failed");
}

TEST(BatchProgressTest, SaysNothingOfRateAndTimeLeftWhereTheyAreNotKnown) {
  EXPECT_EQ(BatchProgress().Text(absl::ZeroDuration()), "0 items");
  EXPECT_EQ((BatchProgress{.total = 3}).Text(absl::Seconds(1)), "0/3 items");
  EXPECT_EQ((BatchProgress{.total = 3, .skipped = 3}).Text(absl::Seconds(1)), "3/3 items");
  EXPECT_EQ((BatchProgress{.ended = 3, .images = 3}).Text(absl::Seconds(2)), "3 items, 1.50 images/s");
  EXPECT_EQ((BatchProgress{.total = 3, .ended = 3, .images = 3}).Text(absl::Seconds(2)), "3/3 items, 1.50 images/s");
}

}  // namespace
}  // namespace tessera::client
