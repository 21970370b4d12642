// The expected sizes are those of diffusers 0.42.
#include "control/pictures/kontext_size.h"

#include <gtest/gtest.h>

#include "absl/status/status.h"

namespace tessera::control {
namespace {

PictureSize ResultSize(int width, int height, int64_t area) {
  return KontextResultSize({width, height}, area).value_or(PictureSize());
}

PictureSize Preferred(int width, int height) {
  return KontextPictureSize({width, height}, /*auto_resize=*/true).value_or(PictureSize());
}

TEST(KontextSizeTest, TheResultHasTheAreaAndTheAspectRatio) {
  EXPECT_EQ(ResultSize(1920, 1080, 1 << 20), (PictureSize{1360, 768}));
  EXPECT_EQ(ResultSize(300, 500, 1 << 20), (PictureSize{784, 1312}));
  EXPECT_EQ(ResultSize(1, 1, 65536), (PictureSize{256, 256}));
  EXPECT_EQ(ResultSize(1024, 100, 1 << 20), (PictureSize{3264, 320}));
}

TEST(KontextSizeTest, TheSidesOfTheResultAreRoundedAndThenCutToMultiplesOf16) {
  EXPECT_EQ(ResultSize(17, 16, 99999), (PictureSize{320, 304}));
  EXPECT_EQ(ResultSize(4, 9, 32400), (PictureSize{112, 256}));
  EXPECT_EQ(ResultSize(961, 961, 992), (PictureSize{16, 16}));  // 31.496
  EXPECT_EQ(ResultSize(961, 961, 993), (PictureSize{32, 32}));  // 31.512
}

TEST(KontextSizeTest, ResultsOutsideTheLimitsAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(KontextResultSize({0, 64}, 4096).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(KontextResultSize({64, -1}, 4096).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(KontextResultSize({64, 64}, 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(KontextResultSize({64, 64}, INT64_MAX).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(KontextResultSize({1000, 1}, 4096).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(KontextResultSize({1, kMaxPictureSide}, 1 << 20).status()));
}

TEST(KontextSizeTest, APictureIsStretchedToTheNearestAspectRatio) {
  EXPECT_EQ(Preferred(16, 16), (PictureSize{1024, 1024}));
  EXPECT_EQ(Preferred(4000, 3000), (PictureSize{1184, 880}));
  EXPECT_EQ(Preferred(3000, 4000), (PictureSize{880, 1184}));
  EXPECT_EQ(Preferred(640, 360), (PictureSize{1392, 752}));
  EXPECT_EQ(Preferred(16, 500), (PictureSize{672, 1568}));
  EXPECT_EQ(Preferred(500, 31), (PictureSize{1568, 672}));
}

TEST(KontextSizeTest, TheAspectRatioIsThatOfTheRoundedSides) {
  EXPECT_EQ(Preferred(31, 16), (PictureSize{1024, 1024}));  // 16 x 16
  EXPECT_EQ(Preferred(95, 79), (PictureSize{1104, 944}));   // 80 x 64
}

TEST(KontextSizeTest, WithoutAutoResizeTheSidesAreOnlyRounded) {
  EXPECT_EQ(KontextPictureSize({101, 75}, /*auto_resize=*/false).value_or(PictureSize()), (PictureSize{96, 64}));
}

TEST(KontextSizeTest, PicturesBelow16PixelsAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(KontextPictureSize({15, 64}, true).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(KontextPictureSize({64, 15}, false).status()));
}

}  // namespace
}  // namespace tessera::control
