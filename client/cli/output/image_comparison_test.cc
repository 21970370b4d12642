#include "client/cli/output/image_comparison.h"

#include <gtest/gtest.h>

#include "control/pictures/picture_frames.h"

namespace tessera::client {
namespace {

TEST(ImageComparisonTest, CountsAPixelOnceHoweverManyChannelsDiffer) {
  const ImageComparison result = CompareImages({.width = 2, .height = 1, .bytes = {10, 20, 30, 40, 50, 60}},
                                               {.width = 2, .height = 1, .bytes = {13, 15, 30, 40, 50, 60}});
  EXPECT_FALSE(result.identical());
  EXPECT_EQ(result.pixels, 2);
  EXPECT_EQ(result.different_pixels, 1);
  EXPECT_EQ(result.largest_difference, 5);
  EXPECT_DOUBLE_EQ(result.mean_difference, 8.0 / 6);
}

TEST(ImageComparisonTest, FindsEqualImagesIdentical) {
  EXPECT_TRUE(
      CompareImages({.width = 1, .height = 1, .bytes = {1, 2, 3}}, {.width = 1, .height = 1, .bytes = {1, 2, 3}})
          .identical());
}

TEST(ImageComparisonTest, NeverFindsImagesOfDifferentSizesIdentical) {
  const ImageComparison result = CompareImages({.width = 2, .height = 1, .bytes = {0, 0, 0, 0, 0, 0}},
                                               {.width = 1, .height = 2, .bytes = {0, 0, 0, 0, 0, 0}});
  EXPECT_FALSE(result.identical());
  EXPECT_EQ(result.different_pixels, 2);
}

}  // namespace
}  // namespace tessera::client
