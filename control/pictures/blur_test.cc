// The expected bytes are those of Pillow 13 on the same pictures; longer results are given by their CRC-32C.
#include "control/pictures/blur.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "control/pictures/made_up_frames.h"

namespace tessera::control {
namespace {

uint32_t BlurredChecksum(int width, int height, int channels, float radius) {
  const absl::StatusOr<Frames> blurred = GaussianBlur(NoiseFrame(width, height, channels), radius);
  EXPECT_TRUE(blurred.ok()) << blurred.status();
  return ChecksumOf(*blurred);
}

TEST(BlurTest, ASmallMaskHasPillowsBytes) {
  EXPECT_EQ(
      GaussianBlur(NoiseFrame(6, 3, 1), 1.5)->bytes,
      (std::vector<uint8_t>{91, 103, 120, 133, 135, 134, 109, 115, 125, 135, 140, 142, 126, 127, 130, 137, 144, 150}));
}

TEST(BlurTest, LargerPicturesHavePillowsBytes) {
  EXPECT_EQ(BlurredChecksum(40, 30, 1, 4), 0xF39C3147);
  EXPECT_EQ(BlurredChecksum(40, 30, 3, 2.5), 0x22517F9B);
  EXPECT_EQ(BlurredChecksum(200, 150, 1, 7), 0xAD01ED3D);
}

TEST(BlurTest, RadiiBelowOnePixelHavePillowsBytes) {
  EXPECT_EQ(BlurredChecksum(40, 30, 1, 0.3), 0x710458A1);
  EXPECT_EQ(BlurredChecksum(40, 30, 1, 0.05), 0x5BD43178);
}

TEST(BlurTest, ABoxWiderThanThePictureRepeatsItsEnds) {
  EXPECT_EQ(BlurredChecksum(9, 7, 3, 10), 0x37CF1E0C);
  EXPECT_EQ(BlurredChecksum(5, 4, 1, 100), 0x4E9A73E0);
  EXPECT_EQ(BlurredChecksum(40, 30, 1, 1000), 0x8279665D);
}

TEST(BlurTest, ZeroIsTheSamePicture) {
  EXPECT_EQ(GaussianBlur(NoiseFrame(5, 4, 3), 0)->bytes, NoiseFrame(5, 4, 3).bytes);
}

TEST(BlurTest, RadiiOutsideTheRangeAreRefused) {
  for (const float radius : {-1.0f, kMaxBlurRadius * 2, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(GaussianBlur(NoiseFrame(2, 2, 1), radius).status())) << radius;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(GaussianBlur(Frames(), 1).status()));
}

}  // namespace
}  // namespace tessera::control
