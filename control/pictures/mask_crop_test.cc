// The expected regions and bytes are those of diffusers 0.42 with Pillow 13; pictures are given by their CRC-32C.
#include "control/pictures/mask_crop.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/status/status.h"
#include "control/pictures/made_up_frames.h"

namespace tessera::control {

std::ostream& operator<<(std::ostream& out, const PixelRegion& r) {
  return out << "(" << r.left << ", " << r.top << ", " << r.right << ", " << r.bottom << ")";
}

namespace {

// A black mask of 100 x 80 pixels with a rectangle of a value, by default the least that counts.
Frames MaskWith(const PixelRegion& white, uint8_t value = 1) {
  Frames mask = FlatFrame(100, 80, 1, 0);
  for (int y = white.top; y < white.bottom; ++y) {
    for (int x = white.left; x < white.right; ++x) mask.bytes[static_cast<size_t>(100 * y + x)] = value;
  }
  return mask;
}

PixelRegion RegionOf(const PixelRegion& white, int width, int height, int padding) {
  const absl::StatusOr<PixelRegion> region = MaskRegion(MaskWith(white), width, height, padding);
  EXPECT_TRUE(region.ok()) << region.status();
  return region.value_or(PixelRegion());
}

TEST(MaskRegionTest, TheRegionGrowsToTheAspectRatioAroundItsCentre) {
  EXPECT_EQ(RegionOf({40, 30, 47, 41}, 64, 64, 0), (PixelRegion{38, 30, 49, 41}));
  EXPECT_EQ(RegionOf({50, 50, 51, 51}, 16, 16, 0), (PixelRegion{50, 50, 51, 51}));
}

TEST(MaskRegionTest, ThePaddingIsAddedFirst) {
  EXPECT_EQ(RegionOf({40, 30, 47, 41}, 64, 64, 5), (PixelRegion{33, 25, 54, 46}));
  EXPECT_EQ(RegionOf({40, 30, 60, 35}, 64, 64, 3), (PixelRegion{37, 20, 63, 46}));
}

TEST(MaskRegionTest, ARegionAtTheEdgeIsMovedInside) {
  EXPECT_EQ(RegionOf({0, 0, 9, 30}, 96, 64, 4), (PixelRegion{0, 0, 51, 34}));
  EXPECT_EQ(RegionOf({95, 70, 100, 80}, 64, 96, 2), (PixelRegion{92, 68, 100, 80}));
}

TEST(MaskRegionTest, ARegionIsNotLargerThanTheMask) {
  EXPECT_EQ(RegionOf({0, 70, 90, 80}, 64, 64, 0), (PixelRegion{0, 0, 90, 80}));
  EXPECT_EQ(RegionOf({40, 10, 43, 77}, 128, 16, 0), (PixelRegion{0, 10, 100, 77}));
  EXPECT_EQ(RegionOf({10, 10, 90, 12}, 64, 128, 0), (PixelRegion{10, 0, 90, 80}));
}

TEST(MaskRegionTest, AMaskWithoutAPixelIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(MaskRegion(FlatFrame(8, 8, 1, 0), 64, 64, 4).status()));
}

TEST(MaskRegionTest, WrongSizesAreRefused) {
  const Frames mask = MaskWith({1, 1, 2, 2});
  EXPECT_TRUE(absl::IsInvalidArgument(MaskRegion(mask, 0, 64, 4).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(MaskRegion(mask, 64, 0, 4).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(MaskRegion(mask, 64, 64, -1).status()));
}

TEST(MaskRegionTest, AnEnormousPaddingIsTheWholeMask) {
  EXPECT_EQ(RegionOf({1, 1, 2, 2}, 1, 1, INT32_MAX), (PixelRegion{0, 0, 100, 80}));
}

Frames Reversed(Frames frame) {  // by rows and columns, the channels in order
  Frames reversed = frame;
  for (size_t i = 0; i < frame.bytes.size(); ++i) {
    const size_t pixel = frame.bytes.size() / 3 - 1 - i / 3;
    reversed.bytes[i] = static_cast<uint8_t>(255 - frame.bytes[3 * pixel + i % 3]);
  }
  return reversed;
}

TEST(OverlayPictureTest, ASoftMaskMixesBothPictures) {
  const absl::StatusOr<Frames> result =
      OverlayPicture(NoiseFrame(64, 48, 1), NoiseFrame(64, 48, 3), Reversed(NoiseFrame(64, 48, 3)), std::nullopt);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(ChecksumOf(*result), 0x8BF03B55);
}

TEST(OverlayPictureTest, AHardMaskTakesEitherPixel) {
  Frames mask = FlatFrame(2, 1, 1, 0);
  mask.bytes[1] = 255;
  const absl::StatusOr<Frames> result =
      OverlayPicture(mask, FlatFrame(2, 1, 3, 7), FlatFrame(2, 1, 3, 9), std::nullopt);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->bytes, (std::vector<uint8_t>{7, 7, 7, 9, 9, 9}));
}

TEST(OverlayPictureTest, ARegionIsPutBackAtItsPlace) {
  Frames mask = NoiseFrame(64, 48, 1);
  for (int y = 0; y < 48; ++y) {
    for (int x = 0; x < 64; ++x) {
      if (x < 10 || x >= 50 || y < 5 || y >= 30) mask.bytes[static_cast<size_t>(64 * y + x)] = 0;
    }
  }
  const absl::StatusOr<Frames> result =
      OverlayPicture(mask, NoiseFrame(64, 48, 3), Reversed(NoiseFrame(64, 48, 3)), PixelRegion{8, 3, 52, 35});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(ChecksumOf(*result), 0x9E881712);
}

TEST(OverlayPictureTest, PicturesThatDoNotMatchAreRefused) {
  const Frames mask = FlatFrame(4, 4, 1, 9), picture = NoiseFrame(4, 4, 3), other = NoiseFrame(4, 5, 3);
  const auto is_refused = [](const absl::StatusOr<Frames>& result) { return absl::IsInvalidArgument(result.status()); };
  EXPECT_TRUE(is_refused(OverlayPicture(mask, other, picture, std::nullopt)));
  EXPECT_TRUE(is_refused(OverlayPicture(mask, picture, other, std::nullopt)));
  EXPECT_TRUE(is_refused(OverlayPicture(mask, picture, mask, std::nullopt)));
  EXPECT_TRUE(is_refused(OverlayPicture(mask, picture, picture, PixelRegion{0, 0, 5, 4})));
  EXPECT_TRUE(is_refused(OverlayPicture(mask, picture, picture, PixelRegion{-1, 0, 4, 4})));
  EXPECT_TRUE(is_refused(OverlayPicture(mask, picture, picture, PixelRegion{2, 0, 2, 4})));
}

}  // namespace
}  // namespace tessera::control
