#include "client/cli/train/training_reporter.h"

#include <gtest/gtest.h>

namespace tessera::client {
namespace {

TEST(TrainingReporterTest, SaysHowFastItGoesAndHowLongItTakesYet) {
  EXPECT_EQ(TrainingText({.step = 12, .loss = 0.12344, .learning_rate = 1e-4}, 1000, 8, 0.5),
            "step 12/1000, loss 0.1234, lr 0.0001, 16 images/s, 8m14s left");
  EXPECT_EQ(TrainingText({.step = 1000, .loss = 2, .learning_rate = 0}, 1000, 1, 3),
            "step 1000/1000, loss 2.0000, lr 0, 0.333 images/s");
  EXPECT_EQ(TrainingText({.step = 3, .loss = 1, .learning_rate = 1, .skipped = true}, 10, 1, 0),
            "step 3/10, loss 1.0000, lr 1, not finite and skipped");
}

TEST(TrainingReporterTest, SaysWhatCameFromTheCache) {
  EXPECT_EQ(PreparedText({.prepared = 8, .samples = 20}), "encoding images and captions: 8 of 20");
  EXPECT_EQ(PreparedText({.prepared = 8, .samples = 20, .cached_pictures = 8, .cached_captions = 7}),
            "encoding images and captions: 8 of 20, 8 images and 7 captions from the cache");
}

}  // namespace
}  // namespace tessera::client
