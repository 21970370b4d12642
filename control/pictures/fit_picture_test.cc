// The expected bytes are those of Pillow 13 and of diffusers 0.42 on the same pictures; longer results are given by
// their CRC-32C.
#include "control/pictures/fit_picture.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "control/pictures/made_up_frames.h"
#include "control/pictures/picture.h"

namespace tessera::control {
namespace {

std::vector<uint8_t> Resized(const Frames& picture, int width, int height) {
  const absl::StatusOr<Frames> result = Resize(picture, width, height);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->bytes : std::vector<uint8_t>();
}

uint32_t ResizedChecksum(const Frames& picture, int width, int height) {
  const absl::StatusOr<Frames> result = Resize(picture, width, height);
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->width, width);
  EXPECT_EQ(result->height, height);
  return ChecksumOf(*result);
}

uint32_t FittedChecksum(int width, int height, int new_width, int new_height, FitMode mode) {
  const absl::StatusOr<Frames> result = FitPicture(NoiseFrame(width, height, 3), new_width, new_height, mode);
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->width, new_width);
  EXPECT_EQ(result->height, new_height);
  return ChecksumOf(*result);
}

void ExpectInvalid(const absl::StatusOr<Frames>& result, const std::string& text) {
  ASSERT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
  EXPECT_NE(std::string(result.status().message()).find(text), std::string::npos) << result.status();
}

TEST(ResizeTest, SmallPicturesHavePillowsBytes) {
  EXPECT_EQ(
      Resized(NoiseFrame(6, 5, 3), 4, 3),
      (std::vector<uint8_t>{91, 143, 140, 129, 140, 127, 148, 0,   189, 134, 85,  210, 76,  186, 138, 122, 182, 173,
                            42, 172, 148, 112, 122, 162, 149, 114, 157, 139, 139, 217, 133, 194, 164, 136, 170, 80}));
  EXPECT_EQ(Resized(NoiseFrame(5, 4, 1), 9, 7),
            (std::vector<uint8_t>{9,   0,   0,   57,  143, 157, 165, 213, 243, 15,  17,  29,  78,  131, 155, 176,
                                  212, 230, 19,  51,  105, 135, 136, 143, 164, 193, 208, 0,   54,  166, 223, 194,
                                  107, 75,  139, 194, 7,   54,  160, 254, 251, 101, 20,  120, 210, 86,  86,  116,
                                  210, 254, 140, 71,  166, 241, 139, 107, 82,  169, 241, 170, 122, 204, 255}));
}

TEST(ResizeTest, AnAxisThatKeepsItsSizeIsNotFiltered) {
  EXPECT_EQ(Resized(NoiseFrame(7, 3, 1), 4, 3),
            (std::vector<uint8_t>{0, 128, 180, 80, 160, 122, 154, 136, 141, 143, 175, 241}));
  EXPECT_EQ(ResizedChecksum(NoiseFrame(64, 48, 3), 64, 20), 0x79AA1AAA);
  EXPECT_EQ(ResizedChecksum(NoiseFrame(64, 48, 3), 20, 48), 0x551DE874);
  EXPECT_EQ(Resized(NoiseFrame(9, 8, 3), 9, 8), NoiseFrame(9, 8, 3).bytes);
}

TEST(ResizeTest, LargerPicturesHavePillowsBytes) {
  EXPECT_EQ(ResizedChecksum(NoiseFrame(300, 200, 3), 97, 101), 0x5F562BA9);
  EXPECT_EQ(ResizedChecksum(NoiseFrame(60, 50, 1), 200, 170), 0x272667F5);
}

TEST(ResizeTest, TheVerticalPassIsFirstIfTheHeightLosesMoreThanTwiceAsMuch) {
  EXPECT_EQ(ResizedChecksum(NoiseFrame(40, 160, 3), 39, 30), 0x88CC93B8);
  EXPECT_EQ(ResizedChecksum(NoiseFrame(30, 60, 3), 20, 39), 0xF2A4E573);
}

TEST(ResizeTest, TheHorizontalPassIsFirstIfTheHeightLosesExactlyTwiceAsMuch) {
  EXPECT_EQ(ResizedChecksum(NoiseFrame(30, 60, 3), 20, 40), 0x0F0C43B6);
}

TEST(ResizeTest, AFlatPictureStaysFlat) {
  EXPECT_EQ(Resized(FlatFrame(7, 5, 3, 201), 3, 11), FlatFrame(3, 11, 3, 201).bytes);
}

TEST(ResizeTest, SizesOutsideTheLimitsAreRefused) {
  const Frames picture = NoiseFrame(4, 4, 3);
  ExpectInvalid(Resize(picture, 0, 4), "cannot have 0x4 pixels; valid are sides of 1 to 16384");
  ExpectInvalid(Resize(picture, 4, -1), "4x-1");
  ExpectInvalid(Resize(picture, kMaxPictureSide + 1, 1), "16385x1");
  ExpectInvalid(Resize(picture, kMaxPictureSide, kMaxPictureSide), "16384x16384");
  ExpectInvalid(Resize(Frames(), 4, 4), "0x0");
}

TEST(ResizeTest, PicturesOfAnotherShapeAreRefused) {
  ExpectInvalid(Resize(NoiseFrame(4, 4, 4), 2, 2), "one frame of 1 or 3 channels");
  Frames two = NoiseFrame(4, 4, 3);
  two.count = 2;
  ExpectInvalid(Resize(two, 2, 2), "one frame of 1 or 3 channels");
  Frames truncated = NoiseFrame(4, 4, 3);
  truncated.bytes.pop_back();
  ExpectInvalid(Resize(truncated, 2, 2), "47 bytes, but 4x4");
}

TEST(FitPictureTest, StretchIgnoresTheAspectRatio) {
  EXPECT_EQ(FitPicture(NoiseFrame(6, 5, 3), 4, 3, FitMode::kStretch)->bytes, Resized(NoiseFrame(6, 5, 3), 4, 3));
}

TEST(FitPictureTest, CropCoversTheSizeAndCutsAroundTheCentre) {
  EXPECT_EQ(FittedChecksum(50, 33, 64, 64, FitMode::kCrop), 0xCEAEDA40);
  EXPECT_EQ(FittedChecksum(33, 50, 64, 64, FitMode::kCrop), 0x66A35A33);
  EXPECT_EQ(FittedChecksum(50, 33, 48, 80, FitMode::kCrop), 0x6E4C81F2);
  EXPECT_EQ(FittedChecksum(7, 60, 32, 16, FitMode::kCrop), 0x435B6937);
  EXPECT_EQ(FittedChecksum(31, 17, 27, 19, FitMode::kCrop), 0xD01CB43E);
}

TEST(FitPictureTest, FillFitsThePictureAndContinuesItsEdges) {
  EXPECT_EQ(FittedChecksum(50, 33, 64, 64, FitMode::kFill), 0xC1521EB1);
  EXPECT_EQ(FittedChecksum(33, 50, 64, 64, FitMode::kFill), 0x746886CB);
  EXPECT_EQ(FittedChecksum(50, 33, 48, 80, FitMode::kFill), 0x5BC1C478);
  EXPECT_EQ(FittedChecksum(7, 60, 32, 16, FitMode::kFill), 0xDDA2645A);
  EXPECT_EQ(FittedChecksum(31, 17, 27, 19, FitMode::kFill), 0x50ABFCC3);
  EXPECT_EQ(FittedChecksum(1, 3, 8, 4, FitMode::kFill), 0xAC5B5E4E);
}

TEST(FitPictureTest, AnEdgeIsExtrapolatedFromTwoRows) {
  const absl::StatusOr<Frames> filled = FitPicture(NoiseFrame(3, 2, 3), 3, 6, FitMode::kFill);
  ASSERT_TRUE(filled.ok()) << filled.status();
  std::vector<uint8_t> red;
  for (size_t i = 0; i < filled->bytes.size(); i += 3) red.push_back(filled->bytes[i]);
  EXPECT_EQ(red, (std::vector<uint8_t>{0, 151, 127, 0, 151, 127, 5, 162, 126,  //
                                       200, 247, 117, 224, 255, 116, 224, 255, 116}));
}

TEST(FitPictureTest, TheSameAspectRatioNeedsNoBorder) {
  EXPECT_EQ(FittedChecksum(40, 40, 24, 24, FitMode::kFill), 0x43F6447D);
  EXPECT_EQ(FittedChecksum(40, 40, 24, 24, FitMode::kCrop), 0x43F6447D);
}

TEST(FitPictureTest, AGrayPictureStaysGray) {
  const absl::StatusOr<Frames> filled = FitPicture(FlatFrame(10, 4, 1, 99), 8, 8, FitMode::kFill);
  ASSERT_TRUE(filled.ok()) << filled.status();
  EXPECT_EQ(filled->bytes, FlatFrame(8, 8, 1, 99).bytes);
}

TEST(FitPictureTest, ExtremeAspectRatiosAreRefused) {
  ExpectInvalid(FitPicture(FlatFrame(1, 100, 3, 0), 64, 64, FitMode::kFill), "1x100 pixels is too narrow");
  ExpectInvalid(FitPicture(FlatFrame(1000, 1, 3, 0), 64, 64, FitMode::kCrop), "1000x1 pixels is too narrow");
}

TEST(CutRegionTest, ThePartOutsideThePictureIsBlack) {
  const absl::StatusOr<Frames> cut = CutRegion(NoiseFrame(3, 2, 1), {.left = -1, .top = 1, .right = 2, .bottom = 4});
  ASSERT_TRUE(cut.ok()) << cut.status();
  const std::vector<uint8_t> source = NoiseFrame(3, 2, 1).bytes;
  EXPECT_EQ(cut->bytes, (std::vector<uint8_t>{0, source[3], source[4], 0, 0, 0, 0, 0, 0}));
}

TEST(CutRegionTest, ARegionWithoutPixelsIsRefused) {
  ExpectInvalid(CutRegion(NoiseFrame(3, 2, 1), {.left = 2, .top = 0, .right = 2, .bottom = 2}), "0x2");
  ExpectInvalid(CutRegion(NoiseFrame(3, 2, 1), {.left = 2, .top = 0, .right = 1, .bottom = 2}), "-1x2");
  ExpectInvalid(CutRegion(NoiseFrame(3, 2, 1), {.left = INT32_MIN, .top = 0, .right = INT32_MAX, .bottom = 2}), "x2");
}

}  // namespace
}  // namespace tessera::control
