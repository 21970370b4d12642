// The expected gray values are those of Pillow 13.
#include "control/pictures/mask.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/status/status.h"
#include "control/pictures/made_up_frames.h"

namespace tessera::control {
namespace {

Frames Gray(int width, int height, std::vector<uint8_t> values) {
  return {.width = width, .height = height, .channels = 1, .bytes = std::move(values)};
}

TEST(MaskTest, GrayHasPillowsWeights) {
  EXPECT_EQ(ToGray(NoiseFrame(8, 4, 3))->bytes,
            (std::vector<uint8_t>{20,  188, 137, 87,  105, 122, 202, 128, 105, 49,  38,  136, 126, 184, 168, 174,
                                  153, 163, 78,  155, 190, 124, 170, 43,  191, 103, 142, 158, 197, 186, 142, 180}));
  EXPECT_EQ(ToGray(FlatFrame(1, 1, 3, 255))->bytes, std::vector<uint8_t>{255});
}

TEST(MaskTest, AGrayPictureStaysAsItIs) { EXPECT_EQ(ToGray(NoiseFrame(4, 3, 1))->bytes, NoiseFrame(4, 3, 1).bytes); }

TEST(MaskTest, ValuesFrom128AreRepainted) {
  EXPECT_EQ(BinarizeMask(Gray(5, 1, {0, 127, 128, 129, 255}))->bytes, (std::vector<uint8_t>{0, 0, 1, 1, 1}));
  EXPECT_TRUE(absl::IsInvalidArgument(BinarizeMask(NoiseFrame(2, 2, 3)).status()));
}

// Gray after the resize; the other order gives other pixels (checksum 0xE812553D).
TEST(MaskTest, AMaskIsResizedInItsChannelsThenGray) {
  const absl::StatusOr<Frames> prepared = PrepareMask(NoiseFrame(90, 70, 3), 160, 128, FitMode::kStretch);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->channels, 1);
  EXPECT_EQ(ChecksumOf(*prepared), 0x91CFC011);
}

}  // namespace
}  // namespace tessera::control
