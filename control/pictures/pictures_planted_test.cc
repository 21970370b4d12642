// Every bug planted in a function of pictures changes a result that the tests of that function expect, which is
// Pillow's.
#include <gtest/gtest.h>

#include "control/pictures/fit_picture.h"
#include "control/pictures/made_up_frames.h"
#include "control/pictures/mask.h"
#include "control/pictures/mask_crop.h"
#include "tests/support/planted_bug.h"

namespace tessera::control {
namespace {

// Enlarged, and reduced so much in height that the vertical pass is the first.
bool ResizeIsRight() {
  return ChecksumOf(*Resize(NoiseFrame(60, 50, 1), 200, 170)) == 0x272667F5 &&
         ChecksumOf(*Resize(NoiseFrame(40, 160, 3), 39, 30)) == 0x88CC93B8;
}

bool MaskIsRight() {
  const Frames binary = *PrepareMask(NoiseFrame(90, 70, 3), 160, 128, FitMode::kStretch);
  return ChecksumOf(binary) == 0x91CFC011;
}

bool RegionIsRight() {
  Frames mask = FlatFrame(100, 80, 1, 0);
  for (int y = 30; y < 41; ++y) {
    for (int x = 40; x < 47; ++x) mask.bytes[static_cast<size_t>(100 * y + x)] = 1;
  }
  return *MaskRegion(mask, 64, 64, 0) == PixelRegion{38, 30, 49, 41};
}

TEST(PlantedPicturesTest, WithoutABugEveryResultIsRight) {
  EXPECT_TRUE(ResizeIsRight());
  EXPECT_TRUE(MaskIsRight());
  EXPECT_TRUE(RegionIsRight());
}

TEST(PlantedPicturesTest, ExchangedPassesAreDetected) {
  const PlantedBug planted("resize_passes_exchanged");
  EXPECT_FALSE(ResizeIsRight());
}

TEST(PlantedPicturesTest, WeightsWithOneBitLessAreDetected) {
  const PlantedBug planted("weights_of_21_bits");
  EXPECT_FALSE(ResizeIsRight());
}

TEST(PlantedPicturesTest, AnInvertedMaskIsDetected) {
  const PlantedBug planted("mask_inverted");
  EXPECT_FALSE(MaskIsRight());
}

TEST(PlantedPicturesTest, ARegionThatIsTooLargeIsDetected) {
  const PlantedBug planted("region_one_too_large");
  EXPECT_FALSE(RegionIsRight());
}

}  // namespace
}  // namespace tessera::control
