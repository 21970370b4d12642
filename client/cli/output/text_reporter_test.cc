#include "client/cli/output/text_reporter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace tessera::client {
namespace {

TEST(TextReporterTest, RoundsTheTimeLeftUpToTheSecond) {
  EXPECT_EQ(DurationText(0), "0s");
  EXPECT_EQ(DurationText(-1), "0s");
  EXPECT_EQ(DurationText(0.1), "1s");
  EXPECT_EQ(DurationText(59.5), "1m00s");
  EXPECT_EQ(DurationText(3599.5), "1h00m");
  EXPECT_EQ(DurationText(7384), "2h03m");
}

TEST(TextReporterTest, ShowsBarStepAndTimeWhereThereIsRoom) {
  EXPECT_EQ(ProgressText({.step = 5, .steps = 20, .step_seconds = 0.5}, 80),
            "[######..................] step 5/20, 0.50 s/step, 8s left");
  EXPECT_EQ(ProgressText({.image = 1, .images = 3, .step = 0, .steps = 4}, 80),
            "image 2/3 [........................] step 0/4");
}

TEST(TextReporterTest, SaysThatTheImageIsDecodedAfterTheLastStep) {
  EXPECT_EQ(ProgressText({.step = 20, .steps = 20, .step_seconds = 0.5}, 80),
            "[########################] decoding the image");
  EXPECT_EQ(ProgressText({.image = 0, .images = 2, .step = 4, .steps = 4, .step_seconds = 2}, 80),
            "image 1/2 [########################] decoding the image, 2.00 s/step, 8s left");
}

TEST(TextReporterTest, FitsIntoEveryWidthAndKeepsTheStep) {
  const Progress progress = {.image = 9, .images = 1000, .step = 123, .steps = 1000, .step_seconds = 61};
  EXPECT_EQ(ProgressText(progress, 60), "image 10/1000 [#............] step 123/1000, 16789h51m left");
  EXPECT_EQ(ProgressText(progress, 40), "image 10/1000 [#........] step 123/1000");
  EXPECT_EQ(ProgressText(progress, 30), "image 10/1000 step 123/1000");
  EXPECT_EQ(ProgressText(progress, 20), "step 123/1000");
  for (int columns = 0; columns < 200; ++columns) {
    const std::string text = ProgressText(progress, columns);
    EXPECT_LE(static_cast<int>(text.size()), std::max(columns - 1, 0));
    EXPECT_EQ(text.find("step 123/1000") != std::string::npos, columns > 13) << columns;
  }
}

}  // namespace
}  // namespace tessera::client
