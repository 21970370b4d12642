#include "server/pictures/picture_pixels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "server/image/image_file.h"

namespace tessera::server {
namespace {

using testing::ElementsAre;

control::Frames Row(int channels, std::vector<uint8_t> bytes) {
  const int width = static_cast<int>(bytes.size()) / channels;
  return {.width = width, .height = 1, .channels = channels, .bytes = std::move(bytes)};
}

TEST(OnWhite, RoundsEveryValueWithEveryAlphaToTheNearest) {
  for (int alpha = 0; alpha <= 255; ++alpha) {
    std::vector<uint8_t> bytes;
    for (int value = 0; value <= 255; ++value) {
      const auto v = static_cast<uint8_t>(value);
      bytes.insert(bytes.end(), {v, 0, 255, static_cast<uint8_t>(alpha)});
    }
    const control::Frames opaque = OnWhite(Row(4, bytes));
    ASSERT_EQ(opaque.channels, 3);
    ASSERT_EQ(opaque.bytes.size(), 3U * 256);
    for (int value = 0; value <= 255; ++value) {
      const double exact = (value * alpha + 255.0 * (255 - alpha)) / 255;
      ASSERT_LE(std::abs(opaque.bytes[static_cast<size_t>(3 * value)] - exact), 0.5) << value << " " << alpha;
    }
    EXPECT_EQ(opaque.bytes[1], 255 - alpha);
    EXPECT_EQ(opaque.bytes[2], 255);
  }
}

TEST(OnWhite, LeavesOpaquePicturesUnchanged) {
  EXPECT_THAT(OnWhite(Row(3, {1, 2, 3, 4, 5, 6})).bytes, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(DropAlpha, KeepsTheColoursOfTransparentPixels) {
  const control::Frames opaque = DropAlpha(Row(4, {1, 2, 3, 0, 4, 5, 6, 255}));
  EXPECT_EQ(opaque.channels, 3);
  EXPECT_THAT(opaque.bytes, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(MaskOfAlpha, IsWhiteWhereThePictureIsTransparent) {
  EXPECT_THAT(MaskOfAlpha(Row(4, {1, 2, 3, 0, 4, 5, 6, 255, 7, 8, 9, 100})).bytes,
              ElementsAre(255, 255, 255, 0, 0, 0, 155, 155, 155));
}

TEST(MaskOfAlpha, IsBlackForAPictureWithoutAlpha) {
  const control::Frames mask = MaskOfAlpha(Row(3, {1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(mask.channels, 3);
  EXPECT_THAT(mask.bytes, ElementsAre(0, 0, 0, 0, 0, 0));
}

TEST(StoredPicture, HasThreeKindsOfChunksAndTheSamePixels) {
  const control::Frames frame{.width = 2, .height = 2, .bytes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}};
  const absl::StatusOr<std::string> stored = EncodeStoredPicture(frame);
  ASSERT_TRUE(stored.ok()) << stored.status();
  std::vector<std::string> chunks;
  for (size_t at = 8; at + 12 <= stored->size();) {
    size_t length = 0;
    for (size_t i = 0; i < 4; ++i) length = length << 8 | static_cast<uint8_t>((*stored)[at + i]);
    chunks.push_back(stored->substr(at + 4, 4));
    at += 12 + length;
  }
  EXPECT_THAT(chunks, ElementsAre("IHDR", "IDAT", "IEND"));
  EXPECT_EQ(stored->substr(24, 5), std::string("\x08\x02\0\0\0", 5)) << "8 bits, RGB, not interlaced";
  EXPECT_EQ(DecodeImage(*stored)->image.bytes, frame.bytes);
}

TEST(StoredPicture, RefusesAlphaAndSeveralFrames) {
  EXPECT_TRUE(absl::IsInvalidArgument(EncodeStoredPicture(Row(4, {1, 2, 3, 4})).status()));
  const control::Frames two{.width = 1, .height = 1, .count = 2, .bytes = {1, 2, 3, 4, 5, 6}};
  EXPECT_TRUE(absl::IsInvalidArgument(EncodeStoredPicture(two).status()));
}

}  // namespace
}  // namespace tessera::server
